"""One CUDA process: tells what it sees of its device, tries to take memory, and lives until its input ends.

    mps_client.py [MEBIBYTES]...      one line of JSON on standard output
"""

import ctypes
import json
import os
import sys

MULTIPROCESSORS, MPS_ENABLED = 16, 133

cuda = ctypes.CDLL("libcuda.so.1")


def attribute(device, number):
    """A device attribute; none if the driver does not tell."""
    value = ctypes.c_int(-1)
    code = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value if code == 0 else None


def main():
    """Opens the first device."""
    seen = {"pid": os.getpid(), "uid": os.getuid(), "init": cuda.cuInit(0)}
    if seen["init"] == 0:
        device, context = ctypes.c_int(), ctypes.c_void_p()
        cuda.cuDeviceGet(ctypes.byref(device), 0)
        seen["context"] = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        cuda.cuCtxSetCurrent(context)
        uuid = ctypes.create_string_buffer(16)
        cuda.cuDeviceGetUuid_v2(uuid, device)
        seen["uuid"] = uuid.raw.hex()
        seen["mps"] = attribute(device, MPS_ENABLED)
        seen["multiprocessors"] = attribute(device, MULTIPROCESSORS)
        seen["allocations"] = []
        for mebibytes in map(int, sys.argv[1:]):
            pointer = ctypes.c_void_p()
            code = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mebibytes << 20))
            seen["allocations"].append([mebibytes, code])
            if code == 0:
                cuda.cuMemFree_v2(pointer)
    print(json.dumps(seen), flush=True)
    sys.stdin.read()


main()
