"""Lists what the `gguf` package of llama.cpp reads from files: one path per input line, one JSON object per output.

An object has the metadata and the tensors, or the reason why the file was refused. Numbers are strings, so that none is
rounded; floats and strings are the hexadecimal digits of their bytes. Nested arrays are flattened, as in the package.
"""

import json
import signal
import sys
import warnings

import numpy
from gguf import GGUFReader, GGUFValueType

RESERVED_FIELDS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")
HEXADECIMAL = (GGUFValueType.STRING, GGUFValueType.FLOAT32, GGUFValueType.FLOAT64)


def as_text(part, kind):
    return part.tobytes().hex() if kind in HEXADECIMAL else str(int(part[0]))


def listing(path):
    reader = GGUFReader(path)
    metadata = {}
    for name, field in reader.fields.items():
        if name not in RESERVED_FIELDS:
            kind = field.types[-1]
            values = [as_text(field.parts[at], kind) for at in field.data]
            metadata[name] = {"types": [kind.name for kind in field.types], "values": values}
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape.tolist())]
        tensors[tensor.name] = {"type": tensor.tensor_type.name, "shape": shape, "at": tensor.data_offset,
                                "bytes": tensor.n_bytes}
    return {"metadata": metadata, "tensors": tensors}


def time_out(*_):
    raise TimeoutError("the file takes too long")


signal.signal(signal.SIGVTALRM, time_out)
numpy.seterr(all="ignore")
warnings.simplefilter("ignore")
for line in sys.stdin:
    signal.setitimer(signal.ITIMER_VIRTUAL, 60 if "mutated" not in line else 0.25)
    try:
        try:
            answer = listing(line.rstrip("\n"))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except Exception as error:  # any error means that the file was refused
        answer = {"refused": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer), flush=True)
