/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cufile.c: libcufile over the fake CUDA driver, for tests of GPUDirect Storage. FAKE_CUFILE in the
 * environment says what it is like: comma-separated words of
 *   unloaded   nvidia-fs is not loaded: opening the driver fails
 *   compat     it may work in compatibility mode
 *   forced     compatibility mode is forced
 *   nothing    neither nvidia-fs nor P2PDMA: compatibility mode
 *   p2pdma     P2PDMA instead of nvidia-fs
 *   refuse     it takes no file
 *   short      it moves one page at a time
 *   fail       it moves nothing: an error of cuFile
 * fake_cufile_bytes() says how many bytes it has moved, fake_cufile_handles() how many files it
 * has.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "platform/cufile.h"

#define EXPORT __attribute__((visibility("default")))
#define PAGE 4096u

static _Atomic uint64_t moved;
static _Atomic int handles, opened;

struct fake_file {
	int fd;
};

static bool is(const char *word)
{
	const char *list = getenv("FAKE_CUFILE");

	return list && strstr(list, word);
}

static struct cufile_status status(int error)
{
	return (struct cufile_status){ .error = error };
}

EXPORT uint64_t fake_cufile_bytes(void)
{
	return atomic_load(&moved);
}

EXPORT int fake_cufile_handles(void)
{
	return atomic_load(&handles);
}

EXPORT struct cufile_status cuFileDriverOpen(void)
{
	if (is("unloaded"))
		return status(5001);
	atomic_fetch_add(&opened, 1);
	return status(0);
}

EXPORT struct cufile_status cuFileDriverClose_v2(void)
{
	return status(atomic_fetch_sub(&opened, 1) > 0 ? 0 : 5001);
}

/* The old one, which ends the driver for all users: nobody should call it. */
EXPORT struct cufile_status cuFileDriverClose(void)
{
	abort();
}

EXPORT struct cufile_status cuFileDriverGetProperties(struct cufile_properties *out)
{
	memset(out, 0, sizeof(*out));
	if (!is("nothing") && !is("p2pdma"))
		out->nvfs.major = 2;
	if (is("compat"))
		out->nvfs.control = CUFILE_CONTROL_ALLOW_COMPAT;
	if (is("p2pdma"))
		out->features = CUFILE_FEATURE_P2P;
	return status(atomic_load(&opened) ? 0 : 5001);
}

EXPORT struct cufile_status cuFileGetParameterBool(int parameter, bool *out)
{
	*out = (parameter == CUFILE_PARAMETER_FORCE_COMPAT && is("forced")) ||
	       (parameter == CUFILE_PARAMETER_USE_P2PDMA && is("p2pdma"));
	return status(0);
}

EXPORT struct cufile_status cuFileHandleRegister(cufile_handle *out,
						 struct cufile_descriptor *descriptor)
{
	int flags = fcntl(descriptor->handle.fd, F_GETFL);
	struct fake_file *file;

	if (descriptor->type != CUFILE_TYPE_FD || flags < 0 || !atomic_load(&opened))
		return status(5022);
	if (!(flags & O_DIRECT))
		return status(5020);
	if (is("refuse"))
		return status(5008);
	file = malloc(sizeof(*file));
	if (!file)
		return status(5030);
	file->fd = descriptor->handle.fd;
	*out = file;
	atomic_fetch_add(&handles, 1);
	return status(0);
}

EXPORT void cuFileHandleDeregister(cufile_handle handle)
{
	atomic_fetch_sub(&handles, 1);
	free(handle);
}

/* The fake driver's memory is copied by the fake driver, in the calling thread's context. */
static int copy(const char *name, uint64_t to, uint64_t from, size_t length)
{
	int (*function)(uint64_t, uint64_t, size_t) = NULL;
	void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *found;

	if (!driver)
		return -1;
	found = dlsym(driver, name);
	memcpy(&function, &found, sizeof(function));
	return function ? function(to, from, length) : -1;
}

static ssize_t move(cufile_handle handle, void *memory, size_t size, off_t at, bool write)
{
	const struct fake_file *file = handle;
	uint64_t address = (uint64_t)(uintptr_t)memory;
	size_t part = is("short") && size > PAGE ? PAGE : size;
	void *buffer = NULL;
	ssize_t got = -1;

	if (is("fail"))
		return -5010;
	/* What is not aligned would be read, changed and written back; nobody should ask for that.
	 */
	if ((address | (uint64_t)at | size) % PAGE)
		return -5022;
	if (posix_memalign(&buffer, PAGE, part))
		return -5030;
	if (write && copy("cuMemcpyDtoH_v2", (uint64_t)(uintptr_t)buffer, address, part))
		got = -5011;
	else
		got = write ? pwrite(file->fd, buffer, part, at) :
			      pread(file->fd, buffer, part, at);
	if (got > 0 && !write &&
	    copy("cuMemcpyHtoD_v2", address, (uint64_t)(uintptr_t)buffer, (size_t)got))
		got = -5011;
	free(buffer);
	if (got > 0)
		atomic_fetch_add(&moved, (uint64_t)got);
	return got;
}

EXPORT ssize_t cuFileRead(cufile_handle handle, void *base, size_t size, off_t at, off_t offset)
{
	return move(handle, (char *)base + offset, size, at, false);
}

EXPORT ssize_t cuFileWrite(cufile_handle handle, const void *base, size_t size, off_t at,
			   off_t offset)
{
	return move(handle, (char *)(uintptr_t)base + offset, size, at, true);
}
