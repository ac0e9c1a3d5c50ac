/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU mappings of GPU memory, shared by the public windows (core/window.c) and libgdrapi
 * (gdrapi.c).
 *
 * A struct wh_windows opens views. A view is a range of GPU addresses, whole GPU pages, that a
 * backend has pinned. Once mapped, it is one contiguous range in this process's address space. It
 * consists of spans; a span is one object of the driver: an allocation of cuMemAlloc, or several
 * that share pages; or a mapping of cuMemCreate's memory.
 *
 * Undo in this order: first munmap(), then release the driver's object. No driver removes pages
 * from a mapping.
 */
#ifndef WH_WINDOW_VIEW_H
#define WH_WINDOW_VIEW_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "platform/cuda.h"
#include "util/error.h"
#include "util/list.h"
#include "window/copy.h"

#define WH_WINDOW_SAID 640 /* bytes for the backends' reports */
/* Views consist of whole GPU pages of this size, because the kernel module pins whole pages. */
#define WH_WINDOW_PAGE UINT64_C(65536)
/* CPUs of this architecture reach a GPU over PCIe only. */
#if defined(__x86_64__)
#define WH_WINDOW_ALWAYS_PCIE 1
#else
#define WH_WINDOW_ALWAYS_PCIE 0
#endif

struct wh_windows;
struct wh_rm;
struct wh_rm_watch_module;

/* A part of a view, whole GPU pages, in one object of the driver: one allocation, or several that
 * share pages. Before the first allocation, between two, and behind the last one there may be gaps
 * of less than a page. */
struct wh_span {
	uint64_t address, length;
	struct wh_cuda_pointer pointer; /* of the first allocation */
	uint32_t flags; /* of the pin */
	bool foreign; /* another process's memory that CUDA has imported */
	/* the owner has sent `object`, which contains the span's first byte at `offset` */
	bool handed;
	struct wh_view_object {
		int fd;
		uint64_t offset;
	} object;
	union { /* the backend's own, from pin() to unpin() */
		struct {
			unsigned gpu, count;
			struct wh_span_object {
				uint32_t object;
				uint64_t offset, length;
			} * objects;
		} rm;
		struct {
			uint64_t handle;
		} driver;
		struct {
			int fd;
		} dmabuf;
	};
};

/* A way to map GPU memory. Called with wh_windows.lock held. */
struct wh_window_backend {
	const char *name;
	/* Check that the backend works here, and open what it needs, once. */
	int (*start)(struct wh_windows *windows);
	void (*stop)(struct wh_windows *windows);
	/* Keep the memory in place until unpin(). */
	int (*pin)(struct wh_windows *windows, struct wh_span *span);
	void (*unpin)(struct wh_windows *windows, struct wh_span *span);
	/* Map it at `at`, replacing what is mapped there; children do not inherit the mapping.
	 * *mapping: the wanted type (NONE: any); on return the type of the mapping. */
	int (*map)(struct wh_windows *windows, struct wh_span *span, void *at,
		   enum wh_mapping *mapping);
	/* Does a mapping stay valid when its memory is freed? NULL: yes. After start(). */
	bool (*holds)(struct wh_windows *windows);
};

extern const struct wh_window_backend wh_window_driver, wh_window_dmabuf, wh_window_rm,
	wh_window_rm_watch;

struct wh_view {
	struct wh_list link;
	struct wh_windows *windows;
	unsigned references;
	const struct wh_window_backend *backend; /* NULL: none (staged) */
	uint64_t wanted, wanted_length; /* the requested range */
	uint64_t address, length; /* the pages that contain it */
	unsigned char *base; /* where they are mapped; NULL: not mapped */
	enum wh_mapping mapping;
	struct wh_copy copy;
	struct wh_cuda_device *device; /* of the first span */
	char said[WH_WINDOW_SAID]; /* the report of each backend that was tried */
	unsigned span_count, part_count;
	struct wh_span *spans;
	/* the allocations: an address in each, and CUDA's BUFFER_ID, which never recurs */
	struct wh_view_part {
		uint64_t address, buffer_id;
	} * parts;
};

/* The cost of writing to a GPU through a window and by its copy engine: ns for each write, and ns
 * for each byte. */
struct wh_window_cost {
	/* window: until a read has shown that the bytes have arrived */
	double window, window_byte;
	double engine, engine_byte;
	double host_byte; /* writing to pinned host memory */
	bool known, measured; /* not measured: typical values */
};

struct wh_window_gpu {
	CUstream stream; /* no implicit synchronization with other streams; NULL: not created */
	_Atomic uint64_t
		engine; /* reads of this many bytes or more use a copy engine; 0: unknown */
	struct wh_window_cost cost; /* for wh_windows_cost() */
};

struct wh_windows {
	struct wh_cuda *cuda;
	uint32_t cpu; /* enum wh_copy_cpu */
	pid_t owner;
	pthread_mutex_t lock;
	struct wh_list views;
	pthread_mutex_t stream_lock; /* taken after `lock` */
	/* by ordinal; created under stream_lock, stays until wh_windows_streams_free() */
	struct wh_window_gpu *gpus;
	/* The backends' own, under `lock`. */
	struct wh_rm *rm;
	const struct wh_rm_watch_module *rm_watch; /* NULL: not opened */
	uint8_t rm_proven[WH_CUDA_DEVICES]; /* by ordinal: a bit for each method that was tested */
	int rm_anchors[WH_CUDA_DEVICES]; /* by ordinal: a descriptor; 0: none, -1: impossible */
	int driver_fd; /* -1: not open */
	uint32_t driver_version;
	bool driver_v1; /* a module without flags and mapping types */
};

/* A request to open a view. */
struct wh_view_request {
	uint64_t address, length;
	const char *order; /* names of backends, separated by commas; "staged": no mapping */
	uint32_t pin_flags; /* 1: force PCIe */
	enum wh_mapping mapping; /* NONE: any */
	bool private; /* do not share the view with other requests */
	/* One allocated byte of the range in each page is enough; else all of the range must be
	 * allocated. */
	bool pages;
	bool foreign; /* another process's memory, which that process keeps until we close */
	/* For foreign memory, from its owner's wh_windows_export(), if it was called: the objects
	 * of the range's first byte and of the first byte of each further part. */
	const struct wh_view_object *objects;
	unsigned object_count;
	bool holds; /* the mapping must stay valid when the memory is freed: no access may fault */
	bool map; /* map it; else only pin it */
};

/* Takes a reference to cuda; initialises nothing. 0 or -ENOMEM. */
int wh_windows_new(struct wh_cuda *cuda, struct wh_windows **out);
/* All views must have been closed. */
void wh_windows_free(struct wh_windows *windows);

/* Find the spans, the parts, the pages and the device of a new view (range.c). 0, or -EINVAL,
 * -EFAULT, -EOPNOTSUPP as of wh_view_open(), or CUDA's error. `again`: an allocation that it found
 * before has been freed meanwhile; it looks longer for ones that stay. */
int wh_view_find(struct wh_view *view, const struct wh_view_request *request, bool again);

/* Is `order` a list of backends that wh_view_open() accepts? */
bool wh_window_order_valid(const char *order);
/* Does the list contain the name? */
bool wh_window_order_has(const char *order, const char *name);

/* Pin GPU memory, and map it if requested; or share an open view that contains the range. 0, or
 * -EINVAL (not a range), -EFAULT (not all of it, or with `pages` not each page, is GPU memory),
 * -EOPNOTSUPP (managed memory, or an unavailable mapping type), or the error of the last backend;
 * the text has the errors of all. */
int wh_view_open(struct wh_windows *windows, const struct wh_view_request *request,
		 struct wh_view **out);
/* Export the driver's object behind [address, address+length), a part of one allocation, for the
 * foreign view of a process that has imported the memory. *out: a descriptor, which the caller
 * closes, and the offset of `address` in the object. Does not wait for a GPU. 0, or -EOPNOTSUPP
 * (the backend rm is unavailable or untested with this driver), or the driver's error. */
int wh_windows_export(struct wh_windows *windows, uint64_t address, uint64_t length,
		      struct wh_view_object *out);
/* Can a foreign view use objects that its owner exports? */
bool wh_windows_imports(struct wh_windows *windows, const char *order);
/* The last user's call unmaps and unpins. */
void wh_view_close(struct wh_view *view);
/* Do the view's addresses still belong to the allocations that it was opened on? */
bool wh_view_current(const struct wh_view *view);
/* Map a pinned view. 0, or -EBUSY: it is mapped already. */
int wh_view_map(struct wh_view *view, enum wh_mapping mapping);
void wh_view_unmap(struct wh_view *view);

/* The CPU address of a GPU address in the view. */
static inline void *wh_view_at(const struct wh_view *view, uint64_t address)
{
	return view->base + (address - view->address);
}

/* ---- copies by the copy engine (staged.c) ---------------------------------------------------- */

/* Copy between host memory and GPU memory in a stream of our own, and wait. */
int wh_windows_put(struct wh_windows *windows, struct wh_cuda_device *device, uint64_t to,
		   const void *from, size_t length);
int wh_windows_get(struct wh_windows *windows, struct wh_cuda_device *device, void *to,
		   uint64_t from, size_t length);
/* The number of bytes from which a read by copy engine is faster than loads through this view;
 * measured once for each device, in about 100 us. SIZE_MAX: never. */
size_t wh_windows_threshold(struct wh_view *view);
void wh_windows_streams_free(struct wh_windows *windows);
/* The stream for a device, created on first use. The caller has entered the device's primary
 * context. */
int wh_windows_stream(struct wh_windows *windows, struct wh_cuda_device *device, CUstream *out);

/* ---- scratch memory (scratch.c) -------------------------------------------------------------- */

struct wh_scratch {
	uint64_t address;
	size_t length;
	CUallocation memory;
};

/* Allocate at least `length` bytes of GPU memory for windows; `imported`: as memory that CUDA has
 * imported. Inside a scope of the device. Neither this nor wh_scratch_free() waits for a GPU. 0, or
 * -EOPNOTSUPP, or CUDA's error. */
int wh_scratch_new(struct wh_cuda *cuda, struct wh_cuda_device *device, size_t length,
		   bool imported, struct wh_scratch *out);
void wh_scratch_free(struct wh_cuda *cuda, struct wh_scratch *scratch);
/* A descriptor of 2 MiB of new memory of that kind. The caller closes it. */
int wh_scratch_descriptor(struct wh_cuda *cuda, const struct wh_cuda_device *device, int *fd);

/* ---- the cost of writing (cost.c) ------------------------------------------------------------ */

/* The cost for a device: measured on the first call, in about 1 ms, with scratch memory and windows
 * of the backends in `order`; typical values where that fails. `pinned`: WH_WINDOW_PROBE bytes of
 * pinned memory, or NULL. One caller at a time. */
#define WH_WINDOW_PROBE ((size_t)1 << 20)
void wh_windows_cost(struct wh_windows *windows, struct wh_cuda_device *device, const char *order,
		     void *pinned, struct wh_window_cost *out);

/* The value of the setting `window` that turns windows off. */
#define WH_WINDOW_OFF "off"

#endif
