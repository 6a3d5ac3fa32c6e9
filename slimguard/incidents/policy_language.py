"""The language of policies, which users write for `on_nan` in Python and on the command line."""

import difflib
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Union

from slimguard.incidents.policies import Policy, Raise, Rollback, Skip, Stop

if TYPE_CHECKING:  # it imports TensorFlow; the command line reads policies without TensorFlow
    from slimguard.incidents.incident import Incident

_BY_NAME = {'raise': Raise, 'stop': Stop, 'skip': Skip, 'rollback': Rollback}
_EXAMPLE = 'skip:5,rollback:3x0.1,raise'

OnNan = Union[None, str, Policy, Callable[['Incident'], Any], Sequence[Any]]


def fallbacks_of(on_nan: OnNan) -> List[Any]:
    """The policies and callables that an `on_nan` argument stands for, in order.

    A str is read by `parse_chain`.

    Raises:
      ValueError: for an unknown name, a number that does not fit, an empty list, or a policy that
        never acts.
      TypeError: if it is neither a name, a policy, a callable, nor a list of these.
    """
    try:
        return _fallbacks_of(on_nan)
    except ValueError as error:
        raise ValueError('on_nan: %s' % error) from None


def _fallbacks_of(on_nan: Any) -> List[Any]:
    if isinstance(on_nan, str):
        return parse_chain(on_nan)
    if isinstance(on_nan, (list, tuple)):
        if not on_nan:
            raise ValueError('the list is empty; name at least one policy, like "raise"')
        found = [fallback for item in on_nan for fallback in _fallbacks_of(item)]
        _require_each_acts(found)
        return found
    if isinstance(on_nan, Policy):
        return [on_nan]
    if isinstance(on_nan, type) and issubclass(on_nan, Policy):
        raise TypeError('on_nan=%s is a class; pass %s()' % (on_nan.__name__, on_nan.__name__))
    if callable(on_nan):
        return [on_nan]
    raise TypeError(
        'on_nan must be the name of a policy, a policy object, a callable or a list of these, '
        'not %r' % (on_nan,)
    )


def require_policy(on_nan: OnNan) -> None:
    """Raises as `fallbacks_of` unless `on_nan` is None; its traceback ends in this function."""
    try:
        if on_nan is not None:
            fallbacks_of(on_nan)
    except (TypeError, ValueError) as error:
        raise error.with_traceback(None) from None


def parse_chain(text: str) -> List[Policy]:
    """The policies that a text stands for: a name, or several with commas between.

    The text means the same in Python, on the command line and in a flag. `skip` and `rollback` may
    have a number, as in ``skip:5``. `rollback` may also have a factor of the learning rate, as in
    ``rollback:3x0.1``.

    Raises:
      ValueError: for an unknown name, a number that does not fit, or a policy that never acts. The
        message names only the text; the caller adds the argument or option.
    """
    found = [_parse_fallback(each.strip(), text) for each in text.split(',')]
    _require_each_acts(found)
    return found


def _require_each_acts(fallbacks: Sequence[Any]) -> None:
    """Raises `ValueError` if anything comes after a policy that takes every incident."""
    for fallback, after in zip(fallbacks, fallbacks[1:]):
        if type(fallback) in (Raise, Stop):  # a user's policy class may not apply
            raise ValueError(
                '%r before %r, which never acts then, since %r takes every incident; put it last'
                % (fallback.action, getattr(after, 'action', after), fallback.action)
            )


def _parse_fallback(text: str, whole: str) -> Policy:
    name, colon, number = (part.strip() for part in text.partition(':'))
    if name not in _BY_NAME:
        *names, last = _BY_NAME
        near = difflib.get_close_matches(name.lower(), _BY_NAME, 1)
        raise ValueError(
            'unknown policy %s%s; expected %s or %s, or several in turn, such as %s'
            % (
                repr(name) if name == whole.strip() else '%r in %r' % (name, whole),
                ' (did you mean %r?)' % near[0] if near else '',
                ', '.join(names),
                last,
                _EXAMPLE,
            )
        )
    kind = _BY_NAME[name]
    if not colon:
        return kind()
    if kind not in (Skip, Rollback):
        raise ValueError('%r: %s takes no number' % (text, name))
    number, times, factor = (part.strip() for part in number.partition('x'))
    if not number.isdigit():
        more = ' or rollback:5x0.1' if kind is Rollback else ''
        raise ValueError('%r: expected a number after the colon, as in %s:5%s' % (text, name, more))
    if not int(number):
        raise ValueError('%r: expected a number of at least 1, as in %s:5' % (text, name))
    if not times:
        return kind(int(number))
    if kind is not Rollback:
        raise ValueError('%r: only rollback takes a factor, as in rollback:3x0.1' % text)
    try:
        return Rollback(int(number), learning_rate=float(factor))
    except ValueError:
        raise ValueError(
            '%r: expected what to multiply the learning rate by after the x, above 0 and at most '
            '1, as in rollback:3x0.1' % text
        ) from None
