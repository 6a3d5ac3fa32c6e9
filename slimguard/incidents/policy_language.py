"""The language of policies, which users write for `on_nan` in Python and on the command line."""

import difflib
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Union

from slimguard.incidents.policies import Policy, Raise, Rollback, Skip, Stop

if TYPE_CHECKING:  # it imports TensorFlow; the command line reads policies without TensorFlow
    from slimguard.incidents.incident import Incident

_BY_NAME = {'raise': Raise, 'stop': Stop, 'skip': Skip, 'rollback': Rollback}
_EXAMPLE = 'skip:5,rollback:3x0.5,raise'

OnNan = Union[None, str, Policy, Callable[['Incident'], Any], Sequence[Any]]


def fallbacks_of(on_nan: OnNan) -> List[Any]:
    """The policies and callables that an `on_nan` argument stands for, in order.

    A str is read by `parse_chain`.

    Raises:
      ValueError: for an unknown name, a number that does not fit, an empty list, or a policy that
        never acts.
      TypeError: for anything that is no name, policy, callable or list of them.
    """
    if isinstance(on_nan, (list, tuple)):
        if not on_nan:
            raise ValueError('on_nan is an empty list; name at least one policy, like "raise"')
        found = [fallback for item in on_nan for fallback in fallbacks_of(item)]
        try:
            _require_each_acts(found)
        except ValueError as error:
            raise ValueError('on_nan has %s' % error) from None
        return found
    if isinstance(on_nan, Policy):
        return [on_nan]
    if isinstance(on_nan, str):
        try:
            return list(parse_chain(on_nan))
        except UnknownPolicyError as error:
            raise ValueError(
                'unknown policy on_nan=%s%s; expected one of %s, several in turn like %r, a policy '
                'object like slimguard.Skip(max_consecutive=10), a callable, or a list of these'
                % (error.name, error.meant, ', '.join(map(repr, _BY_NAME)), _EXAMPLE)
            ) from None
        except ValueError as error:
            raise ValueError('on_nan has %s' % error) from None
    if isinstance(on_nan, type) and issubclass(on_nan, Policy):
        raise TypeError('on_nan=%s is a class; pass %s()' % (on_nan.__name__, on_nan.__name__))
    if callable(on_nan):
        return [on_nan]
    raise TypeError(
        'on_nan must be the name of a policy, a policy object, a callable or a list of these, '
        'not %r' % (on_nan,)
    )


class UnknownPolicyError(ValueError):
    """A text names no policy. The message mentions no Python, for the command line.

    Attributes:
      name: the unknown name, quoted, with the text around it if there is any.
      meant: a remark that names the policy with nearly that name, or ''.
    """

    def __init__(self, name: str, text: str):
        names = list(_BY_NAME)
        expected = '%s or %s, or several in turn, such as %s' % (
            ', '.join(names[:-1]),
            names[-1],
            _EXAMPLE,
        )
        near = difflib.get_close_matches(name.lower(), names, 1)
        self.name = repr(name) if name == text.strip() else '%r in %r' % (name, text)
        self.meant = ' (did you mean %r?)' % near[0] if near else ''
        said = 'unknown policy %s%s; expected %s' % (self.name, self.meant, expected)
        ValueError.__init__(self, said)


def parse_chain(text: str) -> List[Policy]:
    """The policies that a text stands for: a name, or several with commas between.

    It means the same in Python, on the command line and in a flag. `skip` and `rollback` may have a
    number, as in ``skip:5``. `rollback` may also have a factor of the learning rate, as in
    ``rollback:3x0.5``.

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
        if type(fallback) in (Raise, Stop):  # a policy class of the user may give way, too
            raise ValueError(
                '%r before %r, which never acts then, since %r takes every incident; put it last'
                % (fallback.action, getattr(after, 'action', after), fallback.action)
            )


def _parse_fallback(text: str, whole: str) -> Policy:
    name, colon, number = (part.strip() for part in text.partition(':'))
    if name not in _BY_NAME:
        raise UnknownPolicyError(name, whole)
    kind = _BY_NAME[name]
    if not colon:
        return kind()
    if kind not in (Skip, Rollback):
        raise ValueError('%r: %s takes no number' % (text, name))
    number, times, factor = (part.strip() for part in number.partition('x'))
    if not number.isdigit():
        more = ' or rollback:5x0.5' if kind is Rollback else ''
        raise ValueError('%r: expected a number after the colon, as in %s:5%s' % (text, name, more))
    if not int(number):
        raise ValueError('%r: expected a number of at least 1, as in %s:5' % (text, name))
    if not times:
        return kind(int(number))
    if kind is not Rollback:
        raise ValueError('%r: only rollback takes a factor, as in rollback:3x0.5' % text)
    try:
        return Rollback(int(number), learning_rate=float(factor))
    except ValueError:
        raise ValueError(
            '%r: expected what to multiply the learning rate by after the x, above 0 and at most '
            '1, as in rollback:3x0.5' % text
        ) from None
