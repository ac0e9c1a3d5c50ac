/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for other processes: legacy IPC handles, and fake dma-bufs. */
#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"
#include "platform/rm-abi.h"

/* The contents of an IPC handle. The process, the length, the object's size, the offset in it, its
 * client and its object are where driver 580 has them; the other fields are the fake's own. */
struct handle {
	char magic[8];
	uint32_t pid, fd;
	uint64_t size;
	uint32_t pages, offset; /* of 4 KiB; bytes */
	uint64_t inode, id;
	uint32_t client, object;
	uint64_t pad;
};

_Static_assert(sizeof(struct handle) == sizeof(struct fake_ipc_handle), "CUipcMemHandle");
_Static_assert(offsetof(struct handle, size) == 16 && offsetof(struct handle, pages) == 24 &&
		       offsetof(struct handle, client) == 48,
	       "as driver 580");

static const char magic[8] = "fakeIPC1";

static _Atomic int layout;

FAKE_API void fake_cuda_ipc_layout(int which)
{
	layout = which;
}

/* Falsify a handle as fake_cuda_ipc_layout() asks; no known driver makes such handles. */
static void ipc_falsify(struct handle *handle)
{
	switch (atomic_load(&layout)) {
	case FAKE_IPC_OTHER_OFFSET:
		handle->offset += FAKE_BAR_PAGE;
		handle->pages += FAKE_BAR_PAGE / 4096;
		break;
	case FAKE_IPC_OTHER_PROCESS:
		handle->pid++;
		break;
	case FAKE_IPC_OTHER_OBJECT:
		handle->object++;
		break;
	case FAKE_IPC_SHORT_OBJECT:
		handle->pages = 1;
		break;
	default:
		break;
	}
}

FAKE_API int cuIpcGetMemHandle(struct fake_ipc_handle *out, uint64_t address)
{
	struct handle handle = { .pid = (uint32_t)getpid() };
	struct fake_range *range;
	int error = FAKE_INVALID_VALUE;
	struct stat is;

	FAKE_ENTER();
	if (!out)
		return FAKE_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range && range->device->lost) {
		error = range->device->lost;
	} else if (range && range->kind == FAKE_DEVICE && !fstat(range->memory->fd, &is)) {
		memcpy(handle.magic, magic, sizeof(magic));
		handle.fd = (uint32_t)range->memory->fd;
		handle.inode = is.st_ino;
		handle.size = range->size;
		handle.pages = (uint32_t)(range->memory->size / 4096);
		handle.offset = (uint32_t)range->offset;
		handle.id = range->buffer_id;
		handle.client = FAKE_CLIENT;
		handle.object = fake_object(range->memory);
		ipc_falsify(&handle);
		memcpy(out, &handle, sizeof(handle));
		error = FAKE_OK;
	}
	pthread_rwlock_unlock(&fake_map_lock);
	return error;
}

int fake_world_open(uint64_t inode)
{
	const char *world = fake_settings()->world;
	DIR *list = world ? opendir(world) : NULL;
	const struct dirent *entry;
	int fd = -1;

	while (list && fd < 0 && (entry = readdir(list)))
		if (entry->d_ino == inode)
			fd = openat(dirfd(list), entry->d_name, O_RDWR | O_CLOEXEC);
	if (list)
		closedir(list);
	return fd;
}

/* Open the memory's descriptor in the process that exported it. -1: that process has ended or has
 * freed the memory. */
static int ipc_open_memory(const struct handle *handle)
{
	char path[64];
	struct stat is;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/fd/%u", handle->pid, handle->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && (fstat(fd, &is) || is.st_ino != handle->inode)) {
		close(fd);
		fd = -1;
	}
	return fd < 0 ? fake_world_open(handle->inode) : fd;
}

/* Has this context opened the memory already? */
static bool ipc_find_opened(const struct fake_range *range, const void *wanted)
{
	const struct fake_range *other = wanted;

	return range->kind == FAKE_IMPORTED && range->inode == other->inode &&
	       range->context == other->context;
}

/* Map the memory of `fd`. Takes the descriptor over on success. Under fake_map_lock. */
static int map_import(int fd, const struct handle *handle, struct fake_range *range, uint64_t *out)
{
	int error = fake_memory_import(fd, &range->memory);
	uint64_t base;

	if (error)
		return error;
	range->device = range->memory->device;
	range->size = handle->size;
	range->offset = handle->offset;
	range->opens = 1;
	error = FAKE_INVALID_VALUE;
	if (handle->offset > range->memory->size ||
	    handle->size > range->memory->size - handle->offset)
		goto err_drop;
	error = FAKE_PEER_UNSUPPORTED;
	if (!fake_peers(range->context->device, range->device))
		goto err_drop;
	error = FAKE_OUT_OF_MEMORY;
	base = fake_reserve(range->memory->size, FAKE_GRANULARITY, 0, false);
	range->base = base + range->offset;
	if (!base)
		goto err_drop;
	if (!fake_range_add(range))
		goto err_unreserve;
	range->memory->mappings = 1;
	*out = range->base;
	return FAKE_OK;

err_unreserve:
	fake_unreserve(fake_reservation_find(base));
err_drop:
	/* The caller closes the descriptor on errors, so the memory must not. */
	range->memory->fd = dup(fd);
	fake_memory_drop(range->memory);
	return error;
}

FAKE_API int cuIpcOpenMemHandle_v2(uint64_t *out, struct fake_ipc_handle given, unsigned flags)
{
	struct fake_range range = { .kind = FAKE_IMPORTED }, *before;
	struct handle handle;
	int error, fd;

	FAKE_ENTER();
	error = fake_current(&range.context);
	if (error)
		return error;
	memcpy(&handle, &given, sizeof(handle));
	/* LAZY_ENABLE_PEER_ACCESS is the only flag, and it is required. */
	if (!out || flags != 1 || memcmp(handle.magic, magic, sizeof(magic)) != 0)
		return FAKE_INVALID_VALUE;
	if (handle.pid == (uint32_t)getpid())
		return FAKE_INVALID_CONTEXT;
	fd = ipc_open_memory(&handle);
	if (fd < 0)
		return FAKE_INVALID_VALUE;
	range.inode = handle.inode;
	pthread_rwlock_wrlock(&fake_map_lock);
	before = fake_range_search(ipc_find_opened, &range);
	if (before) {
		before->opens++;
		*out = before->base;
	} else {
		error = map_import(fd, &handle, &range, out);
	}
	pthread_rwlock_unlock(&fake_map_lock);
	if (error || before)
		close(fd);
	return error;
}

FAKE_API int cuIpcCloseMemHandle(uint64_t address)
{
	struct fake_context *context, *owner = NULL;
	struct fake_range *range;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	pthread_rwlock_rdlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range && range->kind == FAKE_IMPORTED && range->base == address)
		owner = range->context;
	pthread_rwlock_unlock(&fake_map_lock);
	if (!owner)
		return FAKE_INVALID_VALUE;
	fake_context_wait(owner);
	pthread_rwlock_wrlock(&fake_map_lock);
	range = fake_range_find(address);
	if (range && range->kind == FAKE_IMPORTED && --range->opens == 0)
		fake_range_free(range);
	pthread_rwlock_unlock(&fake_map_lock);
	return FAKE_OK;
}

/* ---- dma-buf --------------------------------------------------------------------------------- */

/* The memory that contains the whole range, and the range's offset in it; NULL: none does. A page
 * that an allocation shares with its neighbours may be exported. Under fake_map_lock. */
static struct fake_memory *range_memory(uint64_t address, size_t size, size_t *offset)
{
	struct fake_range *range = fake_range_overlap(address, size);
	int64_t start;

	if (!range || !range->memory)
		return NULL;
	start = (int64_t)range->offset + (int64_t)(address - range->base);
	if (start < 0 || (uint64_t)start + size > range->memory->size ||
	    (range->kind == FAKE_MAPPED && address + size > range->base + range->size))
		return NULL;
	*offset = (size_t)start;
	return range->memory;
}

/* Send the request that a real driver sends to the kernel here, for tests that watch for it. The
 * result does not matter; usually the device does not even exist. */
static void request_export(const struct fake_memory *memory, size_t offset, size_t size)
{
	int control = open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
	struct rm_export_dma_buf request = {
		.fd = memory->fd,
		.client = FAKE_CLIENT,
		.total_objects = 1,
		.objects = 1,
		.total_size = size,
		.handles = { fake_object(memory) },
		.offsets = { offset },
		.sizes = { size },
	};

	if (control < 0)
		return;
	ioctl(control, RM_REQUEST(RM_ESCAPE_EXPORT_DMA_BUF, request), &request);
	close(control);
}

FAKE_API int fake_cuda_memory_fd(uint64_t address, size_t size, size_t *offset)
{
	struct fake_memory *memory;

	pthread_rwlock_rdlock(&fake_map_lock);
	memory = range_memory(address, size, offset);
	pthread_rwlock_unlock(&fake_map_lock);
	return memory ? memory->fd : -1;
}

FAKE_API int cuMemGetHandleForAddressRange(void *out, uint64_t address, size_t size, int type,
					   unsigned long long flags)
{
	struct fake_context *context;
	struct fake_memory *memory;
	char path[64];
	size_t offset;
	int error, supported, fd = -1;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	if (!out || !size || type != 1 || flags > 1 || address % 4096 || size % 4096)
		return FAKE_INVALID_VALUE;
	if (flags) /* DMA_BUF_MAPPING_TYPE_PCIE */
		return FAKE_NOT_SUPPORTED;
	error = cuDeviceGetAttribute(&supported, 124, context->device->ordinal);
	if (error || !supported)
		return error ? error : FAKE_NOT_SUPPORTED;
	pthread_rwlock_rdlock(&fake_map_lock);
	memory = range_memory(address, size, &offset);
	if (memory) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", memory->fd);
		fd = open(path, O_RDWR | O_CLOEXEC); /* unlike dup(), has its own file position */
		request_export(memory, offset, size);
	}
	error = memory && fd >= 0 ? FAKE_OK : memory ? FAKE_OUT_OF_MEMORY : FAKE_NOT_SUPPORTED;
	if (!memory && !fake_range_overlap(address, size))
		error = FAKE_INVALID_VALUE;
	pthread_rwlock_unlock(&fake_map_lock);
	if (error)
		return error;
	lseek(fd, (off_t)offset, SEEK_SET);
	memcpy(out, &fd, sizeof(fd));
	return FAKE_OK;
}

FAKE_API int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	struct fake_context *context;
	int error;

	FAKE_ENTER();
	error = fake_current(&context);
	if (error)
		return error;
	return target || (scope != 100 && scope != 200) ? FAKE_INVALID_VALUE : FAKE_OK;
}
