"""Where `instrument` looks for functions, without a twentieth of the time of the tests.

It looks for who has imported them by name, through thousands of modules: as it begins and as it
ends, in each of a thousand tests. Programs that the template forks spend a sixth of their time on
it: to look at a page of memory that is shared with the template is to copy it.
"""

import functools
import sys

from slimguard.scripts import good_checkpoints, instrumentation, numeric_checks

everywhere = instrumentation.loaded_modules


def pass_over_libraries() -> None:
    """Has it pass over the modules that have none of the functions now, but for those of tests.

    A module that is loaded later is looked through, too.
    """
    by_name = dict(everywhere())
    wanted = {id(function) for function in _functions(by_name)}
    idle = {
        name: module
        for name, module in by_name.items()
        if wanted.isdisjoint(map(id, getattr(module, '__dict__', {}).values()))
        and name.partition('.')[0] not in ('tests', '__main__')
    }
    instrumentation.loaded_modules = functools.partial(_all_but, idle)


def _all_but(idle):
    return [each for each in list(sys.modules.items()) if idle.get(each[0]) is not each[1]]


def _functions(by_name):
    for name in instrumentation._MODULES:
        if name in by_name:
            yield by_name[name].create_train_op
            yield by_name[name].train
    yield from good_checkpoints.replacements()
    yield from numeric_checks.replacements()
