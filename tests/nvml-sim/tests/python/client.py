"""Drives the simulated NVML as any Python client of NVML would, through nvidia-ml-py.

Run by `python.rs`, which says where the library is. Every expectation is an assertion; the last line tells that all were met.
"""

import os
import sys

import pynvml as n


def refused(code, call, *args):
    """The call fails with this code."""
    try:
        call(*args)
    except n.NVMLError as error:
        assert error.value == code, f"{call.__name__}: {error} ({error.value}), not {code}"
    else:
        raise AssertionError(f"{call.__name__}{args} succeeded")


def profile(gpu, slices):
    """A GPU instance profile by its constant."""
    return n.nvmlDeviceGetGpuInstanceProfileInfo(gpu, slices)


def uuids(gpu):
    """UUIDs of the MIG devices; holes in the numbering are skipped."""
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))
        except n.NVMLError as error:
            assert error.value == n.NVML_ERROR_NOT_FOUND, error
    return found


def divided(gpu):
    """MIG is off, is switched on, instances come and go, and it is switched off."""
    assert "SIMULATED" in n.nvmlSystemGetDriverVersion()
    assert n.nvmlDeviceGetMigMode(gpu) == [0, 0]
    one = profile(gpu, n.NVML_GPU_INSTANCE_PROFILE_1_SLICE)
    three = profile(gpu, n.NVML_GPU_INSTANCE_PROFILE_3_SLICE)
    assert (one.id, one.instanceCount, three.id) == (19, 7, 9)
    refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceCreateGpuInstance, gpu, one.id)

    assert n.nvmlDeviceSetMigMode(gpu, 1) == 0
    assert n.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert n.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, one.id) == 7
    refused(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlDeviceCreateGpuInstance, gpu, 77)
    left = n.nvmlDeviceCreateGpuInstance(gpu, three.id)
    right = n.nvmlDeviceCreateGpuInstance(gpu, three.id)
    refused(n.NVML_ERROR_INSUFFICIENT_RESOURCES, n.nvmlDeviceCreateGpuInstance, gpu, one.id)
    places = [n.nvmlGpuInstanceGetInfo(instance).placement for instance in (left, right)]
    assert sorted((place.start, place.size) for place in places) == [(0, 4), (4, 4)]
    assert uuids(gpu) == [], "a GPU instance alone has no UUID"

    whole = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(left, n.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE, 0)
    part = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(right, n.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 0)
    refused(
        n.NVML_ERROR_NOT_SUPPORTED,
        n.nvmlGpuInstanceGetComputeInstanceProfileInfo,
        left,
        n.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
        0,
    )
    device = n.nvmlGpuInstanceCreateComputeInstance(left, whole.id)
    parts = [n.nvmlGpuInstanceCreateComputeInstance(right, part.id) for _ in range(3)]
    refused(n.NVML_ERROR_INSUFFICIENT_RESOURCES, n.nvmlGpuInstanceCreateComputeInstance, right, part.id)
    before = uuids(gpu)
    assert len(before) == len(set(before)) == 4 and all(uuid.startswith("MIG-") for uuid in before)
    mig = n.nvmlDeviceGetHandleByUUID(before[0])
    assert n.nvmlDeviceIsMigDeviceHandle(mig).value == 1
    refused(n.NVML_ERROR_NOT_SUPPORTED, n.nvmlDeviceGetUtilizationRates, gpu)

    refused(n.NVML_ERROR_IN_USE, n.nvmlGpuInstanceDestroy, left)
    assert n.nvmlDeviceSetMigMode(gpu, 0) == n.NVML_ERROR_IN_USE, "the status tells, the call itself succeeds"
    assert n.nvmlDeviceGetMigMode(gpu) == [1, 0]
    refused(n.NVML_ERROR_INVALID_STATE, n.nvmlDeviceCreateGpuInstance, gpu, one.id)
    assert n.nvmlDeviceSetMigMode(gpu, 1) == 0

    n.nvmlComputeInstanceDestroy(device)
    n.nvmlGpuInstanceCreateComputeInstance(left, whole.id)
    after = uuids(gpu)
    assert len(set(before) - set(after)) == 1, "what is created anew has another UUID"
    for instance in (left, right):
        number = n.nvmlGpuInstanceGetInfo(instance).id
        for ci in range(8):
            try:
                compute = n.nvmlGpuInstanceGetComputeInstanceById(instance, ci)
            except n.NVMLError as error:
                assert error.value == n.NVML_ERROR_NOT_FOUND, error
                continue
            n.nvmlComputeInstanceDestroy(compute)
        n.nvmlGpuInstanceDestroy(instance)
        refused(n.NVML_ERROR_NOT_FOUND, n.nvmlDeviceGetGpuInstanceById, gpu, number)
    refused(n.NVML_ERROR_INVALID_ARGUMENT, n.nvmlComputeInstanceDestroy, parts[0])
    assert n.nvmlDeviceSetMigMode(gpu, 0) == 0
    assert n.nvmlDeviceGetMigMode(gpu) == [0, 0]


def unprivileged(gpu):
    """Whoever is not root may look and may not change."""
    assert os.geteuid() != 0, "this part is run as somebody else"
    assert profile(gpu, n.NVML_GPU_INSTANCE_PROFILE_1_SLICE).id == 19
    refused(n.NVML_ERROR_NO_PERMISSION, n.nvmlDeviceSetMigMode, gpu, 1)
    refused(n.NVML_ERROR_NO_PERMISSION, n.nvmlDeviceCreateGpuInstance, gpu, 19)


def main():
    """Runs the part that is named."""
    n.nvmlInit()
    gpu = n.nvmlDeviceGetHandleByIndex(0)
    {"divided": divided, "unprivileged": unprivileged}[sys.argv[1]](gpu)
    n.nvmlShutdown()
    print("all as expected")


main()
