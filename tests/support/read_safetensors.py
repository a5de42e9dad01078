"""Prints a safetensors file, `NAME DTYPE SHAPE VALUES` a line, sorted by name. Shares no code with Everstep.

    read_safetensors.py FILE [--dump RAW NAME...]

--dump writes the values of the named tensors to a file, one after the other, as they lie in memory.

By the `safetensors` package where it is installed (with numpy), which is the judge; otherwise by the format's own
description. The first line says which.
"""

import json
import struct
import sys

FORMATS = {"F32": "f", "I64": "q", "U8": "B"}


def by_package(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        for name in sorted(file.keys()):
            array = file.get_tensor(name)
            dtype = {"float32": "F32", "int64": "I64", "uint8": "U8"}[str(array.dtype)]
            yield name, dtype, list(array.shape), array.reshape(-1).tolist()


def by_description(path):
    with open(path, "rb") as file:
        raw = file.read()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length <= 100_000_000 and 8 + length <= len(raw)
    header = json.loads(raw[8:8 + length].decode("utf-8"))
    data = raw[8 + length:]
    at = 0
    header.pop("__metadata__", None)
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = info["data_offsets"]
        assert begin == at, "a gap or an overlap"
        at = end
    assert at == len(data), "bytes that belong to no tensor"
    for name in sorted(header):
        info = header[name]
        begin, end = info["data_offsets"]
        count = 1
        for size in info["shape"]:
            count *= size
        values = struct.unpack(f"<{count}{FORMATS[info['dtype']]}", data[begin:end])
        yield name, info["dtype"], info["shape"], list(values)


def main():
    try:
        import numpy  # noqa: F401
        import safetensors  # noqa: F401

        reader, label = by_package, "safetensors " + safetensors.__version__
    except ImportError:
        reader, label = by_description, "the format's description"
    print(f"# read by {label}")
    tensors = list(reader(sys.argv[1]))
    if sys.argv[2:3] == ["--dump"]:
        by_name = {name: struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values) for name, dtype, _, values in tensors}
        with open(sys.argv[3], "wb") as file:
            for name in sys.argv[4:]:
                file.write(by_name[name])
    for name, dtype, shape, values in tensors:
        print(name, dtype, shape, values if len(values) <= 64 else f"{len(values)} values, sum {sum(values)!r}")


if __name__ == "__main__":
    main()
