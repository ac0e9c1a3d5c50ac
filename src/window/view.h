/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CPU mappings of GPU memory: what the public windows (window.c) and libgdrapi (gdrapi.c) share.
 *
 * A struct wh_windows opens views. A view is one stretch of addresses of a GPU, whole GPU pages,
 * that is pinned by a backend and, once mapped, lies in one piece in this process's address space.
 * Its spans are what the driver knows as one object each: an allocation of cuMemAlloc, or several
 * that share pages; for memory of cuMemCreate, a mapping.
 *
 * The order in which things are undone matters everywhere: first munmap(), then what the driver
 * holds, since no driver takes pages away from a mapping.
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

#define WH_WINDOW_SAID 640 /* bytes for what the backends said */
/* What views are rounded to: the GPU's page, of which the kernel module pins whole ones. */
#define WH_WINDOW_PAGE UINT64_C(65536)
/* A GPU is reached by PCIe and nothing else. */
#if defined(__x86_64__)
#define WH_WINDOW_ALWAYS_PCIE 1
#else
#define WH_WINDOW_ALWAYS_PCIE 0
#endif

struct wh_windows;
struct wh_rm;
struct wh_rm_watch_module;

/* A part of a view, whole GPU pages: one allocation, or several that meet within pages, and so lie
 * in one object of the driver's. It begins before its first allocation, and ends behind its last
 * one, by less than a page, and there may be gaps between them, of less than a page each. */
struct wh_span {
	uint64_t address, length;
	struct wh_cuda_pointer pointer; /* what CUDA says of the first allocation */
	uint32_t flags; /* of the pin */
	bool foreign; /* CUDA imported it */
	/* its owner has sent `object`, of the span's first byte */
	bool handed;
	struct wh_view_object {
		int fd;
		uint64_t offset;
	} object;
	union { /* what the backend keeps between pin() and unpin() */
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

/* Ways to come by a mapping. Called with wh_windows.lock held. */
struct wh_window_backend {
	const char *name;
	/* Is it there? Opens what it needs, once. */
	int (*start)(struct wh_windows *windows);
	void (*stop)(struct wh_windows *windows);
	/* Hold on to the memory. */
	int (*pin)(struct wh_windows *windows, struct wh_span *span);
	void (*unpin)(struct wh_windows *windows, struct wh_span *span);
	/* Map it at `at`, in place of what is there, not to be inherited by children. *mapping is
	 * the type asked for (NONE: any) and becomes the one got. */
	int (*map)(struct wh_windows *windows, struct wh_span *span, void *at,
		   enum wh_mapping *mapping);
	/* Does a mapping stay when its memory is freed? NULL: yes. After start(). */
	bool (*holds)(struct wh_windows *windows);
};

extern const struct wh_window_backend wh_window_driver, wh_window_dmabuf, wh_window_rm,
	wh_window_rm_watch;

struct wh_view {
	struct wh_list link;
	struct wh_windows *windows;
	unsigned references;
	const struct wh_window_backend *backend; /* NULL: none, staged */
	uint64_t wanted, wanted_length; /* what was asked for */
	uint64_t address, length; /* the pages it lies in */
	unsigned char *base; /* where they are mapped; NULL: not */
	enum wh_mapping mapping;
	struct wh_copy copy;
	struct wh_cuda_device *device; /* of the first span */
	char said[WH_WINDOW_SAID]; /* what each backend tried had to say */
	unsigned span_count, part_count;
	struct wh_span *spans;
	/* The allocations, by an address in each; the BUFFER_ID never recurs in this process. */
	struct wh_view_part {
		uint64_t address, buffer_id;
	} * parts;
};

/* What writing costs, through windows onto a GPU and by its copy engine: so many ns, and for each
 * byte. */
struct wh_window_cost {
	/* window: until one read back has shown that it has arrived */
	double window, window_byte;
	double engine, engine_byte;
	double host_byte; /* writing to pinned memory of the host */
	bool known, measured; /* else it is what is usual */
};

struct wh_window_gpu {
	/* does not wait for others and is not waited for; NULL: not yet */
	CUstream stream;
	/* reads of so many bytes and more go by a copy engine; 0: not known */
	_Atomic uint64_t engine;
	struct wh_window_cost cost; /* kept by wh_windows_cost() */
};

struct wh_windows {
	struct wh_cuda *cuda;
	uint32_t cpu; /* enum wh_copy_cpu */
	pid_t owner;
	pthread_mutex_t lock;
	struct wh_list views;
	pthread_mutex_t stream_lock; /* comes after `lock` */
	/* by the devices' ordinals; under stream_lock, and then kept */
	struct wh_window_gpu *gpus;
	/* The backends' own, under the lock. */
	struct wh_rm *rm;
	const struct wh_rm_watch_module *rm_watch; /* NULL: not opened */
	uint8_t rm_proven[WH_CUDA_DEVICES]; /* by the devices' ordinals, a bit for each way */
	/* by the devices' ordinals, descriptors; 0: none, -1: not to be had */
	int rm_anchors[WH_CUDA_DEVICES];
	int driver_fd; /* -1: not open */
	uint32_t driver_version;
	bool driver_v1; /* it knows no flags and no mapping types */
};

/* What is asked of a view. */
struct wh_view_request {
	uint64_t address, length;
	const char *order; /* names of backends, comma between; "staged": without a mapping */
	uint32_t pin_flags; /* 1: force PCIe */
	enum wh_mapping mapping; /* NONE: any */
	bool private; /* not to be shared with others */
	/* Each page of the range needs one byte of the range that is allocated, not all of them;
	 * else all of the range has to be. */
	bool pages;
	bool foreign; /* another process's, which keeps what it publishes until we let go */
	/* Foreign memory, part by part, as its owner's wh_windows_export() gives it, if it has been
	 * asked: where the first byte asked for, and the first of each part behind it, lies. */
	const struct wh_view_object *objects;
	unsigned object_count;
	/* has to stay what it is when the memory is freed: no access may fault */
	bool holds;
	bool map; /* or only pin */
};

/* cuda is held. Starts nothing. 0 or -ENOMEM. */
int wh_windows_new(struct wh_cuda *cuda, struct wh_windows **out);
/* All views must be closed. */
void wh_windows_free(struct wh_windows *windows);

/* Fill in the spans, the parts, the pages and the device of a view that is being opened (range.c).
 * 0, or -EINVAL, -EFAULT, -EOPNOTSUPP as of wh_view_open(); CUDA's error. */
int wh_view_find(struct wh_view *view, const struct wh_view_request *request);

/* Is it a list of names that wh_view_open() takes? */
bool wh_window_order_valid(const char *order);
/* Is this name in it? */
bool wh_window_order_has(const char *order, const char *name);

/* Pin memory of a GPU, and map it if asked to; or take part in a view that has it already. 0, or
 * -EINVAL (no range), -EFAULT (not all of it, or with `pages` not each page, is a GPU's memory),
 * -EOPNOTSUPP (managed memory, a mapping type that is not to be had), or what the last backend
 * said; the text has it of all. */
int wh_view_open(struct wh_windows *windows, const struct wh_view_request *request,
		 struct wh_view **out);
/* For a foreign view of somebody who has imported [address, address+length), which lies in one
 * allocation: a descriptor of what the kernel driver knows the memory as, to be closed by the
 * caller, and where in it `address` is. Does not wait for a GPU. 0, or -EOPNOTSUPP (the backend rm
 * cannot be used, or is not proven here), or what the driver said. */
int wh_windows_export(struct wh_windows *windows, uint64_t address, uint64_t length,
		      struct wh_view_object *out);
/* Would a view profit from its owner's objects? */
bool wh_windows_imports(struct wh_windows *windows, const char *order);
/* The last one's call unmaps and unpins. */
void wh_view_close(struct wh_view *view);
/* Is the memory that the view was opened on still what is at its addresses? */
bool wh_view_current(const struct wh_view *view);
/* Map a pinned view. -EBUSY: it is mapped. */
int wh_view_map(struct wh_view *view, enum wh_mapping mapping);
void wh_view_unmap(struct wh_view *view);

/* Where an address of the view is mapped. */
static inline void *wh_view_at(const struct wh_view *view, uint64_t address)
{
	return view->base + (address - view->address);
}

/* ---- by the copy engine (staged.c) ------------------------------------------------------------
 */

/* Copy between ordinary memory and that of a GPU, in a stream of our own, and wait. */
int wh_windows_put(struct wh_windows *windows, struct wh_cuda_device *device, uint64_t to,
		   const void *from, size_t length);
int wh_windows_get(struct wh_windows *windows, struct wh_cuda_device *device, void *to,
		   uint64_t from, size_t length);
/* From how many bytes on a read by copy engine beats loads through this view; measured once for
 * each device, which takes about 100 us. SIZE_MAX: never. */
size_t wh_windows_threshold(struct wh_view *view);
void wh_windows_streams_free(struct wh_windows *windows);
/* The device's own stream, made when first asked for. The device's primary context is entered. */
int wh_windows_stream(struct wh_windows *windows, struct wh_cuda_device *device, CUstream *out);

/* ---- scratch memory (scratch.c) ----------------------------------------------------------------
 */

struct wh_scratch {
	uint64_t address;
	size_t length;
	CUallocation memory;
};

/* At least `length` bytes, for windows; `imported`: as CUDA has imported them. Inside a scope of
 * the device. Does not wait for a GPU, nor does giving it back. 0, or -EOPNOTSUPP, or CUDA's error.
 */
int wh_scratch_new(struct wh_cuda *cuda, struct wh_cuda_device *device, size_t length,
		   bool imported, struct wh_scratch *out);
void wh_scratch_free(struct wh_cuda *cuda, struct wh_scratch *scratch);
/* A descriptor, to be closed by the caller, of a piece of such memory (2 MiB) that nothing else
 * has. */
int wh_scratch_descriptor(struct wh_cuda *cuda, const struct wh_cuda_device *device, int *fd);

/* ---- which way to write (cost.c) ----------------------------------------------------------------
 */

/* Measured the first time for each device, on scratch memory of its own and through windows opened
 * in this order, which takes about a ms; where that is not possible, what is usual. `pinned` are
 * WH_WINDOW_PROBE bytes of pinned memory, NULL: none. One caller at a time. */
#define WH_WINDOW_PROBE ((size_t)1 << 20)
void wh_windows_cost(struct wh_windows *windows, struct wh_cuda_device *device, const char *order,
		     void *pinned, struct wh_window_cost *out);

/* The knob `window` of an engine that is to have none. */
#define WH_WINDOW_OFF "off"

#endif
