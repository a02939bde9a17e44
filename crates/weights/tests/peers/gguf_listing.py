"""What the `gguf` package of llama.cpp reads of files: a path a line in, a line of JSON out.

An object has the metadata and the tensors, or why the file was refused. Numbers are texts, so that none is rounded:
floats as the digits of their bits, strings as those of their bytes. Arrays within arrays are one, as the package has
them.
"""

import json
import signal
import sys
import warnings

import numpy
from gguf import GGUFReader, GGUFValueType

OWN = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")


IN_DIGITS = (GGUFValueType.STRING, GGUFValueType.FLOAT32, GGUFValueType.FLOAT64)


def shown(part, kind):
    return part.tobytes().hex() if kind in IN_DIGITS else str(int(part[0]))


def listing(path):
    reader = GGUFReader(path)
    metadata = {}
    for name, field in reader.fields.items():
        if name not in OWN:
            kind = field.types[-1]
            values = [shown(field.parts[at], kind) for at in field.data]
            metadata[name] = {"types": [kind.name for kind in field.types], "values": values}
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape.tolist())]
        tensors[tensor.name] = {"type": tensor.tensor_type.name, "shape": shape, "at": tensor.data_offset,
                                "bytes": tensor.n_bytes}
    return {"metadata": metadata, "tensors": tensors}


def give_up(*_):
    raise TimeoutError("it counts for ever")


signal.signal(signal.SIGVTALRM, give_up)
numpy.seterr(all="ignore")
warnings.simplefilter("ignore")
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_VIRTUAL, 60 if "mutated" not in line else 0.25)
    try:
        try:
            answer = listing(line.rstrip("\n"))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except Exception as error:  # whatever it is: it is no listing
        answer = {"refused": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer), flush=True)
