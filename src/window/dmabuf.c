/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend dmabuf: windows by mmap() of a dma-buf. The NVIDIA driver allows it since CUDA 13.3,
 * and before that on integrated GPUs.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "window/view.h"

#define FIRST_VERSION 13030

static int dmabuf_start(struct wh_windows *windows)
{
	int error = wh_cuda_ready(windows->cuda);

	if (error)
		return error;
	return windows->cuda->cuMemGetHandleForAddressRange ?
		       0 :
		       wh_cuda_missing(windows->cuda, "cuMemGetHandleForAddressRange");
}

static void dmabuf_stop(struct wh_windows *windows)
{
	(void)windows;
}

static int export_range(struct wh_windows *windows, const struct wh_span *span, int *fd)
{
	struct wh_cuda *cuda = windows->cuda;
	struct wh_cuda_scope scope;
	int result, error = wh_cuda_enter_owner(cuda, span->pointer.base, &scope);

	if (error)
		return error;
	/* The CPU needs the path over PCIe; drivers and platforms without that choice fail. */
	result = cuda->cuMemGetHandleForAddressRange(fd, span->address, span->length,
						     CUDA_RANGE_DMA_BUF, CUDA_RANGE_FLAG_PCIE);
	if (result)
		result = cuda->cuMemGetHandleForAddressRange(fd, span->address, span->length,
							     CUDA_RANGE_DMA_BUF, 0);
	error = wh_cuda_check(cuda, result, "cuMemGetHandleForAddressRange", "%llu bytes at 0x%llx",
			      (unsigned long long)span->length, (unsigned long long)span->address);
	wh_cuda_leave(&scope);
	return error;
}

static int dmabuf_pin(struct wh_windows *windows, struct wh_span *span)
{
	const struct wh_cuda_device *device = span->pointer.device;
	int version = windows->cuda->version;

	if (!device->dma_buf)
		return wh_fail(EOPNOTSUPP, "%s: the driver cannot export its memory as a dma-buf",
			       device->text);
	if (version < FIRST_VERSION && !device->integrated)
		return wh_fail(
			EOPNOTSUPP,
			"mmap of a dma-buf needs a driver of CUDA %d.%d; this one has CUDA %d.%d",
			FIRST_VERSION / 1000, FIRST_VERSION % 1000 / 10, version / 1000,
			version % 1000 / 10);
	return export_range(windows, span, &span->dmabuf.fd);
}

static void dmabuf_unpin(struct wh_windows *windows, struct wh_span *span)
{
	(void)windows;
	close(span->dmabuf.fd);
}

static int dmabuf_map(struct wh_windows *windows, struct wh_span *span, void *at,
		      enum wh_mapping *mapping)
{
	void *got = mmap(at, span->length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
			 span->dmabuf.fd, 0);

	(void)windows;
	if (got == MAP_FAILED)
		return wh_fail(errno, "mmap of a dma-buf of %llu bytes: %s",
			       (unsigned long long)span->length, strerror(errno));
	if (madvise(at, span->length, MADV_DONTFORK))
		return wh_fail(errno, "madvise(MADV_DONTFORK): %s", strerror(errno));
	/* An integrated GPU uses the CPU's own memory. */
	*mapping = span->pointer.device->integrated ? WH_MAPPING_CACHED : WH_MAPPING_WC;
	return 0;
}

const struct wh_window_backend wh_window_dmabuf = {
	.name = "dmabuf",
	.start = dmabuf_start,
	.stop = dmabuf_stop,
	.pin = dmabuf_pin,
	.unpin = dmabuf_unpin,
	.map = dmabuf_map,
};
