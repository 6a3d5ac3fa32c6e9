"""What the hooks of a step fetch goes around no gate: :class:`HookFetches`."""

from typing import Any, Dict, Mapping, Optional, Set

import tensorflow as tf

from slimguard.gate.written_beside import refuse_around
from slimguard.graph import key
from slimguard.system.log import log
from slimguard.training.fetch_structures import fetched_elements, map_fetches
from slimguard.training.inner_feeds import InnerFeeds
from slimguard.training.watched_run import MOST_RUNS, gates_run_by


class HookFetches:
    """Refuses steps in which a hook fetches what goes around a gate, as the loop's own are refused.

    It looks once at each kind of step, and keeps what was fetched so that nothing else gets the ids
    in its key.

    Args:
      graph: the graph of the session.
    """

    def __init__(self, graph: tf.Graph):
        self._graph = graph
        self._inner_feeds = InnerFeeds(graph)
        self._seen: Dict[Any, Any] = {}
        self._warned_of: Set[str] = set()

    def require_gated(
        self,
        fetches: Mapping[Any, Any],
        feed_dict: Optional[dict],
        asked: Any,
        of_loop: Any = (),
    ) -> None:
        """Looks at a step ahead of its run.

        Args:
          fetches: what is fetched, by hook; what the loop fetches has a str in the place of a hook.
          feed_dict: what the loop and the hooks feed.
          asked: a key that tells these fetches from all others.
          of_loop: what the loop fetches beside.

        Raises:
          OutsideTheGateError: names the hook, and says as much as `refuse_around`.
        """
        fed = self._inner_feeds.of(feed_dict) if feed_dict else ()
        asked = (asked, *map(key, fed)) if fed else asked
        if asked in self._seen:
            return
        elements = fetched_elements([dict(fetches), of_loop], self._graph)
        found = gates_run_by(elements, self._graph)
        for hook in fetches if found else ():
            if not isinstance(hook, str):
                own = fetched_elements(fetches[hook], self._graph)
                refuse_around(own, found, fed, self._warn_of, type(hook).__name__)
        if len(self._seen) >= MOST_RUNS:
            self._seen.clear()
        self._seen[asked] = map_fetches([dict(fetches), of_loop], lambda fetch: fetch)

    def _warn_of(self, name: str, why: str) -> None:
        if name not in self._warned_of:
            self._warned_of.add(name)
            log().error('the update of %r is NOT guarded: %s', name, why)
