"""Exports a step from its graph as plain data, for a bundle and for running it again."""

from typing import Any, Dict, List, NamedTuple

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from slimguard import graph as graphs
from slimguard.diagnosis.capture import Capture, gate_roots
from slimguard.graph import op_of
from slimguard.graph.collectives import is_collective
from slimguard.graph.control_flow import SWITCHES, Flow
from slimguard.graph.source_lines import Origins, record


class ExportedStep(NamedTuple):
    """A step as plain data: a GraphDef without the ops that draw, and the names to run it by.

    Attributes:
      graph_def: the ops of the step, the gate's included; a placeholder for each source.
      names: the names of tensors, sources and variables, in a dictionary fit for JSON.
    """

    graph_def: tf1.GraphDef
    names: Dict[str, Any]


def export(capture: Capture) -> ExportedStep:
    """Exports the step of a capture; the graph is only read.

    An export takes as long as several steps, and each diagnosis and bundle needs it. So later calls
    return the result of the first.
    """
    if capture.exported is None:
        capture.exported = _Export(capture).step()
    return capture.exported


class _Export:
    def __init__(self, capture: Capture):
        self._capture = capture
        gate = capture.gate
        self._graph = gate.bad.graph
        self._sources: Dict[tf.Operation, List[tf.Tensor]] = {}
        for tensor in capture.sources:
            self._sources.setdefault(tensor.op, []).append(tensor)
        self._flow = Flow(graphs.ancestors(gate_roots(gate)))
        # Also the ops that computed the inputs of a source, so that these inputs can be examined.
        given = [t.op for each in capture.givens.values() for t in each]
        roots = gate_roots(gate) + list(self._sources) + capture.variables + given
        ops = graphs.ancestors(roots, self._needs)
        self._kept = {op.name for op in ops}
        self._by_name = {op.name: op for op in self._sources}

    def step(self) -> ExportedStep:
        graph_def = tf1.GraphDef()
        whole = self._graph.as_graph_def()
        graph_def.versions.CopyFrom(whole.versions)
        for node in whole.node:
            if node.name in self._by_name:
                graph_def.node.extend(self._placeholders(self._by_name[node.name]))
            elif node.name in self._kept:
                graph_def.node.append(self._without_ties(node))
        _copy_functions(whole.library, graph_def)
        return ExportedStep(graph_def, self._names())

    def _needs(self, op):
        if op not in self._sources:
            return graphs.needs(op)
        # In a branch, the placeholder needs what its source needs: if the branch is not taken, both
        # must be dead.
        in_branch = any(self._flow.conditions(t) for t in op.outputs)
        return list(graphs.needs(op)) if in_branch else []

    def _placeholders(self, op) -> List[tf1.NodeDef]:
        needed = self._needs(op)
        controls = ['^' + each.name for each in dict.fromkeys(needed)]
        # If a branch is not taken, an output of its switch is dead, but not the switch op. So the
        # placeholder depends on an Identity of that output.
        switched = {graphs.key(t): t for t in op.inputs if needed and t.op.type in SWITCHES}
        nodes = [_side_of(tensor, op) for tensor in switched.values()]
        controls += ['^' + node.name for node in nodes]
        if len(op.outputs) > 1:
            nodes.append(tf1.NodeDef(name=op.name, op='NoOp', input=controls))
        for tensor in self._sources[op]:
            node = tf1.NodeDef(name=_placeholder_of(tensor), op='Placeholder', input=controls)
            node.attr['dtype'].type = tensor.dtype.base_dtype.as_datatype_enum
            node.attr['shape'].shape.CopyFrom(tensor.shape.as_proto())
            nodes.append(node)
        return nodes

    def _without_ties(self, node) -> tf1.NodeDef:
        """Removes a node's job and task, and replaces its sources by placeholders.

        The node is changed in place: a copy takes three times as long, and nothing else uses it.
        """
        if node.op == 'PrintV2':
            # A replay prints nothing. And TensorFlow 1.15 cannot import a print of a loop's result,
            # whose scalar shape is lost.
            controls = ['^' + self._renamed(n).lstrip('^').partition(':')[0] for n in node.input]
            return tf1.NodeDef(name=node.name, op='NoOp', input=list(dict.fromkeys(controls)))
        # Replace the gate's sum over ranks by its input: only one rank runs the exported step.
        if node.name.startswith(graphs.OURS) and is_collective(node.op):
            summed = tf1.NodeDef(name=node.name, op='Identity', input=node.input)
            summed.attr['T'].CopyFrom(node.attr['T'])
            return summed
        node.device = _device_alone(node.device)
        for number, name in enumerate(node.input):
            renamed = self._renamed(name)
            if renamed != name:
                node.input[number] = renamed
        ties = list(node.attr['_class'].list.s) if '_class' in node.attr else []
        known = [t for t in ties if tf.compat.as_str(t)[len('loc:@') :] in self._kept]
        if known != ties:
            del node.attr['_class']
            if known:
                node.attr['_class'].list.s.extend(known)
        return node

    def _renamed(self, name: str) -> str:
        if name.startswith('^'):
            return name
        op_name, _, index = name.partition(':')
        op = self._by_name.get(op_name)
        return name if op is None else _placeholder_of(op.outputs[int(index or 0)])

    def _names(self) -> Dict[str, Any]:
        gate, capture = self._capture.gate, self._capture
        return {
            'made_with': tf.__version__,
            'train_op': op_of(gate.train_op).name,
            'loss': None if gate.loss is None else self._tensor(gate.loss),
            'written': gate.written.name,
            'bad': gate.bad.name,
            'watched': gate.watched.name,
            'labels': [list(label) for label in gate.labels],
            'sources': {t.name: [_placeholder_of(t), t.op.type] for t in capture.sources},
            'variables': {
                v.name: tf.as_dtype(v.get_attr('dtype')).base_dtype.name for v in capture.variables
            },
            'givens': {n: list(map(self._tensor, each)) for n, each in capture.givens.items()},
            'origins': self._origins(),
        }

    def _tensor(self, tensor) -> str:
        return _placeholder_of(tensor) + ':0' if tensor.op in self._sources else tensor.name

    def _origins(self) -> Dict[str, Any]:
        ops = graphs.ancestors([op_of(self._capture.gate.original)])
        table = record(Origins(self._graph), dict.fromkeys(ops + self._capture.ops))
        for op, tensors in self._sources.items():
            for tensor in tensors:
                if op.name in table['ops']:
                    table['ops'][_placeholder_of(tensor)] = table['ops'][op.name]
        return table


def _copy_functions(library, graph_def: tf1.GraphDef) -> None:
    """Copies the library's functions that `graph_def` calls, directly or through others."""
    functions = {function.signature.name: function for function in library.function}
    gradients = {gradient.function_name: gradient for gradient in library.gradient}
    waiting = list(graph_def.node)
    seen = set()
    while waiting:
        node = waiting.pop()
        called = [f.name for v in node.attr.values() for f in [v.func] + list(v.list.func)]
        for name in called + [node.op]:
            if name not in functions or name in seen:
                continue
            seen.add(name)
            graph_def.library.function.append(functions[name])
            waiting.extend(functions[name].node_def)
            if name in gradients:
                graph_def.library.gradient.append(gradients[name])
                waiting.append(tf1.NodeDef(op=gradients[name].gradient_func))


def _side_of(switched: tf.Tensor, op: tf.Operation) -> tf1.NodeDef:
    """An Identity of `switched`, a switch's output; `op` waits for it, and is dead if it is."""
    side = (switched.value_index, switched.op.name.replace('/', '_'))
    name = '%s/side_%d_of_%s' % (op.name, *side)
    value = '%s:%d' % (switched.op.name, switched.value_index)
    node = tf1.NodeDef(name=name, op='Identity', input=[value])
    node.attr['T'].type = switched.dtype.base_dtype.as_datatype_enum
    return node


def _device_alone(device: str) -> str:
    """A device without its job and task: a batch for several GPUs is spread over them again.

    On a machine without this device, TensorFlow chooses another.
    """
    spec = tf1.DeviceSpec.from_string(device)
    kind, index = spec.device_type, spec.device_index
    return tf1.DeviceSpec(device_type=kind, device_index=index).to_string()


def _placeholder_of(source: tf.Tensor) -> str:
    """The name of the placeholder for a source."""
    if len(source.op.outputs) == 1:
        return source.op.name
    return '%s/output_%d' % (source.op.name, source.value_index)
