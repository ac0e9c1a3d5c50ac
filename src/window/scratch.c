/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scratch memory on a GPU. It comes from cuMemCreate: every backend can open windows onto such
 * memory, and freeing it does not wait for the application's work, as cuMemFree would.
 */
#include <errno.h>
#include <unistd.h>

#include <wherry/error.h>

#include "window/view.h"

static int scratch_map(struct wh_cuda *cuda, const struct wh_cuda_location *location,
		       struct wh_scratch *scratch)
{
	const struct wh_cuda_access access = { *location, 3 };
	int error = wh_cuda_call(cuda, cuMemAddressReserve, &scratch->address, scratch->length, 0,
				 0, 0);

	if (error)
		return error;
	error = wh_cuda_call(cuda, cuMemMap, scratch->address, scratch->length, 0, scratch->memory,
			     0);
	if (error)
		goto err_addresses;
	error = wh_cuda_call(cuda, cuMemSetAccess, scratch->address, scratch->length, &access, 1);
	if (error)
		goto err_unmap;
	return 0;

err_unmap:
	cuda->cuMemUnmap(scratch->address, scratch->length);
err_addresses:
	cuda->cuMemAddressFree(scratch->address, scratch->length);
	return error;
}

/* Export and import the memory, so that CUDA treats it as another process's. */
static int scratch_import(struct wh_cuda *cuda, struct wh_scratch *scratch)
{
	CUallocation imported;
	int fd = -1, error;

	error = wh_cuda_call(cuda, cuMemExportToShareableHandle, &fd, scratch->memory,
			     CUDA_HANDLE_FD, 0);
	if (error)
		return error;
	error = wh_cuda_call(cuda, cuMemImportFromShareableHandle, &imported, (void *)(intptr_t)fd,
			     CUDA_HANDLE_FD);
	close(fd);
	if (error)
		return error;
	cuda->cuMemRelease(scratch->memory);
	scratch->memory = imported;
	return 0;
}

static int scratch_create(struct wh_cuda *cuda, const struct wh_cuda_device *device, size_t length,
			  struct wh_scratch *out)
{
	struct wh_cuda_properties properties = {
		.type = CUDA_ALLOCATION_PINNED,
		.handle_types = CUDA_HANDLE_FD,
		.location = { CUDA_LOCATION_DEVICE, device->ordinal },
	};
	size_t page = 0;
	int error;

	if (!device->vmm || !device->posix_fd)
		return wh_fail(EOPNOTSUPP, "%s cannot export memory of cuMemCreate", device->text);
	/* Some drivers require this flag for memory that other devices access. */
	properties.flags.rdma = device->rdma_vmm;
	error = wh_cuda_call(cuda, cuMemGetAllocationGranularity, &page, &properties,
			     CUDA_GRANULARITY_MINIMUM);
	if (error)
		return error;
	*out = (struct wh_scratch){ .length = (length + page - 1) / page * page };
	return wh_cuda_call(cuda, cuMemCreate, &out->memory, out->length, &properties, 0);
}

int wh_scratch_new(struct wh_cuda *cuda, struct wh_cuda_device *device, size_t length,
		   bool imported, struct wh_scratch *out)
{
	const struct wh_cuda_location location = { CUDA_LOCATION_DEVICE, device->ordinal };
	struct wh_scratch scratch = { 0 };
	int error = scratch_create(cuda, device, length, &scratch);

	if (error)
		return error;
	if (imported)
		error = scratch_import(cuda, &scratch);
	if (!error)
		error = scratch_map(cuda, &location, &scratch);
	if (error)
		cuda->cuMemRelease(scratch.memory);
	else
		*out = scratch;
	return error;
}

int wh_scratch_descriptor(struct wh_cuda *cuda, const struct wh_cuda_device *device, int *fd)
{
	struct wh_scratch scratch = { 0 };
	int error = scratch_create(cuda, device, 1, &scratch);

	if (error)
		return error;
	error = wh_cuda_call(cuda, cuMemExportToShareableHandle, fd, scratch.memory, CUDA_HANDLE_FD,
			     0);
	cuda->cuMemRelease(scratch.memory);
	return error;
}

void wh_scratch_free(struct wh_cuda *cuda, struct wh_scratch *scratch)
{
	cuda->cuMemUnmap(scratch->address, scratch->length);
	cuda->cuMemAddressFree(scratch->address, scratch->length);
	cuda->cuMemRelease(scratch->memory);
}
