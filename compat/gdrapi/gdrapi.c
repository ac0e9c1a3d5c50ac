/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libgdrapi.so.2: GDRCopy's interface on top of window/view.h. It does not need libwherry.so: both
 * libraries contain the sources that they share.
 *
 * Whatever a program passes is looked up and never dereferenced: a gdr_t among those that are open,
 * a handle in a table that only grows. No handle is given out twice, so a stale one matches
 * nothing, also in the copy functions, which take no lock.
 *
 * Both are addresses of memory that can be read, because some programs take them for pointers to
 * GDRCopy's own structs: NVIDIA's tests copy 48 bytes from a gdr_t, and an entry from a handle.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <wherry/error.h>

#include "gdrapi.h"
#include "window/driver-abi.h"
#include "window/view.h"

/* Programs built before GDRCopy 2.4 use the symbol gdr_get_info. */
#undef gdr_get_info

/* What gdr_get_info() fills in for those programs: gdr_info_v2_t without the mapping type. */
struct info_v1 {
	uint64_t va, mapped_size;
	uint32_t page_size;
	uint64_t tm_cycles;
	uint32_t cycles_per_ms;
	unsigned mapped : 1;
	unsigned wc_mapping : 1;
};

int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *out);

_Static_assert(sizeof(gdr_mh_t) == 8, "gdr_mh_t");
_Static_assert(sizeof(gdr_info_v2_t) == 48, "gdr_info_v2_t");
_Static_assert(offsetof(gdr_info_v2_t, page_size) == 16, "gdr_info_v2_t");
_Static_assert(offsetof(gdr_info_v2_t, tm_cycles) == 24, "gdr_info_v2_t");
_Static_assert(offsetof(gdr_info_v2_t, cycles_per_ms) == 32, "gdr_info_v2_t");
_Static_assert(offsetof(gdr_info_v2_t, mapping_type) == 40, "gdr_info_v2_t");
_Static_assert(sizeof(struct info_v1) == 40, "gdr_info_t before GDRCopy 2.4");

/* Unlike libwherry's own order it ends with rm-watch: who replaces GDRCopy expects a window onto
 * all memory. */
#define DEFAULT_ORDER "driver,dmabuf,rm,rm-watch"
#define DMABUF_ORDER "dmabuf"
#define DMABUF_VERSION 13030 /* the first CUDA version whose dma-bufs can be mapped */

enum state { CLOSED, CHANGING, OPEN };

/* Stays in `all` when it is closed, to be opened again. */
struct gdr {
	int fd; /* the module's, or an eventfd in its place. First: some programs read it */
	int own_fd;
	_Atomic enum state state;
	_Atomic pid_t owner;
	pthread_mutex_t lock; /* pins, and from OPEN to CLOSED */
	struct wh_windows *windows;
	struct wh_list pins;
	struct gdr *next;
};
_Static_assert(sizeof(struct gdr) >= 48, "programs copy what GDRCopy's struct has");

/* A list that only grows: it is read without a lock, also by a child of fork(). */
static struct gdr *_Atomic all;

/* ---- the log --------------------------------------------------------------------------------- */

enum level { DEBUG = 1, ERROR = 4 };

static struct {
	bool enabled;
	int level;
	char order[64];
} settings;
static pthread_once_t start_once = PTHREAD_ONCE_INIT;

static void gdrapi_read_settings(void)
{
	const char *log = secure_getenv("GDRCOPY_ENABLE_LOGGING"),
		   *level = secure_getenv("GDRCOPY_LOG_LEVEL"),
		   *dmabuf = secure_getenv("GDRCOPY_USE_DMABUF_MMAP"),
		   *order = secure_getenv("WHERRY_WINDOW");

	settings.enabled = log;
	settings.level = level && *level >= '1' && *level <= '4' ? *level - '0' : ERROR;
	if (dmabuf && !strcmp(dmabuf, "1"))
		order = DMABUF_ORDER;
	else if (!order || !wh_window_order_valid(order) || strstr(order, "staged") ||
		 strlen(order) >= sizeof(settings.order))
		order = DEFAULT_ORDER;
	snprintf(settings.order, sizeof(settings.order), "%s", order);
}

static void gdrapi_log(enum level level, const char *call, const char *text)
{
	if (settings.enabled && (int)level >= settings.level)
		fprintf(stderr, "gdrapi: %s: %s\n", call, text);
}

/* A call failed: log its text and return the errno that callers of GDRCopy expect. */
static int gdrapi_failed(const char *call, int error)
{
	gdrapi_log(ERROR, call, wh_error_text());
	switch (-error) {
	case EFAULT: /* not GPU memory */
		return EINVAL;
	case EBUSY: /* already mapped */
		return EAGAIN;
	case EPERM: /* the memory of another process */
		return EACCES;
	case ELIBACC: /* rm-watch has no module, and nothing before it opens this memory */
		return EOPNOTSUPP;
	default:
		return -error;
	}
}

/* Log the text of an error that this library itself has found, and return the error. */
static int gdrapi_refuse(const char *call, int error, const char *text)
{
	gdrapi_log(ERROR, call, text);
	return error;
}

/* ---- handles --------------------------------------------------------------------------------- */

/* Each entry has a page of handles, which it gets one after the other. Its last ones are not used:
 * a program that reads a struct at a handle stays within the page. */
#define PAGE ((uint64_t)4096)
#define HANDLE_STEP 8
#define HANDLES 448 /* of an entry */
#define CHUNK 1024 /* entries */
#define CHUNKS 4096
#define SPAN (CHUNK * PAGE) /* of a chunk's handles, which begin at a multiple of it */

struct pin {
	_Atomic uint64_t handle; /* 0: free */
	uint64_t next; /* the handle that this entry gets next */
	struct wh_list link; /* gdr.pins or free_pins */
	struct gdr *g;
	struct wh_view *view;
	_Atomic(unsigned char *) base; /* NULL: not mapped */
	uint64_t length;
	struct wh_copy copy;
};

struct chunk {
	uint64_t handles;
	struct pin pins[CHUNK];
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
/* A hash table by `handles`, half full at most; a chunk is at its slot, or behind it. */
static _Atomic(struct chunk *) chunks[2 * CHUNKS];
static struct wh_list free_pins = { &free_pins, &free_pins };
static unsigned chunk_count;

/* The slot of the chunk whose handles begin at `handles`, or the free one where it belongs. */
static _Atomic(struct chunk *) *chunk_slot(uint64_t handles)
{
	for (uint64_t at = handles / SPAN;; at++) {
		_Atomic(struct chunk *) *slot = &chunks[at % (2 * CHUNKS)];
		const struct chunk *chunk = atomic_load_explicit(slot, memory_order_acquire);

		if (!chunk || chunk->handles == handles)
			return slot;
	}
}

static struct pin *pin_find(gdr_mh_t mh)
{
	struct chunk *chunk =
		atomic_load_explicit(chunk_slot(mh.h & ~(SPAN - 1)), memory_order_acquire);
	struct pin *pin = chunk ? &chunk->pins[mh.h % SPAN / PAGE] : NULL;

	return pin && mh.h && atomic_load_explicit(&pin->handle, memory_order_acquire) == mh.h ?
		       pin :
		       NULL;
}

/* Addresses for a chunk's handles; nothing is written there, so they take no memory. 0: none. */
static uint64_t handles_reserve(void)
{
	char *start =
		mmap(NULL, 2 * SPAN, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t before;

	if (start == MAP_FAILED)
		return 0;
	before = (size_t)(-(uintptr_t)start % SPAN);
	if (before)
		munmap(start, before);
	munmap(start + before + SPAN, SPAN - before);
	return (uintptr_t)start + before;
}

/* Add CHUNK free entries to the table. False: no memory, or the table is full. Under table_lock. */
static bool pin_add_chunk(void)
{
	struct chunk *chunk = chunk_count < CHUNKS ? calloc(1, sizeof(*chunk)) : NULL;

	if (!chunk)
		return false;
	chunk->handles = handles_reserve();
	if (!chunk->handles) {
		free(chunk);
		return false;
	}
	for (unsigned i = 0; i < CHUNK; i++) {
		chunk->pins[i].next = chunk->handles + i * PAGE;
		wh_list_append(&free_pins, &chunk->pins[i].link);
	}
	chunk_count++;
	atomic_store_explicit(chunk_slot(chunk->handles), chunk, memory_order_release);
	return true;
}

static struct pin *pin_new(struct gdr *g, struct wh_view *view)
{
	struct pin *pin = NULL;

	pthread_mutex_lock(&table_lock);
	if (!wh_list_empty(&free_pins) || pin_add_chunk()) {
		pin = wh_container(wh_list_take(&free_pins), struct pin, link);
		pin->g = g;
		pin->view = view;
	}
	pthread_mutex_unlock(&table_lock);
	return pin;
}

/* Unmap and unpin the memory, and free the entry. Under g->lock. */
static void pin_drop(struct pin *pin)
{
	atomic_store_explicit(&pin->handle, 0, memory_order_release);
	pin->base = NULL;
	wh_list_remove(&pin->link);
	wh_view_close(pin->view);
	pthread_mutex_lock(&table_lock);
	pin->g = NULL;
	pin->view = NULL;
	pin->next += HANDLE_STEP;
	if (pin->next % PAGE < HANDLES * HANDLE_STEP) /* else it is used up */
		wh_list_push(&free_pins, &pin->link);
	pthread_mutex_unlock(&table_lock);
}

/* fork() waits for the table, which a child needs that opens its own gdr. */
static void table_hold(void)
{
	pthread_mutex_lock(&table_lock);
}

static void table_let_go(void)
{
	pthread_mutex_unlock(&table_lock);
}

/* 0, EINVAL (not open), or EACCES (opened by the parent process). */
static int gdr_state(const struct gdr *g)
{
	const struct gdr *each = atomic_load_explicit(&all, memory_order_acquire);

	while (each && each != g)
		each = each->next;
	if (!each || atomic_load_explicit(&each->state, memory_order_acquire) != OPEN)
		return EINVAL;
	return atomic_load_explicit(&each->owner, memory_order_relaxed) == getpid() ? 0 : EACCES;
}

static int gdr_refuse(const char *call, const struct gdr *g, int error)
{
	return gdrapi_refuse(call, error,
			     error == EACCES ? "the gdr belongs to the parent of this process" :
			     g               ? "no such gdr: not from gdr_open(), or closed" :
					       "the gdr is NULL");
}

/* Check and lock a gdr. Not 0: the errno to return; nothing is locked. The parent's threads may
 * hold its locks forever in a child. */
static int gdr_enter(const char *call, struct gdr *g)
{
	int error = gdr_state(g);

	if (error)
		return gdr_refuse(call, g, error);
	pthread_mutex_lock(&g->lock);
	error = gdr_state(g); /* it may have been closed meanwhile */
	if (!error)
		return 0;
	pthread_mutex_unlock(&g->lock);
	return gdr_refuse(call, g, error);
}

static void gdr_leave(struct gdr *g)
{
	pthread_mutex_unlock(&g->lock);
}

/* Find the pin of a handle and lock g, as gdr_enter(). */
static int pin_enter(const char *call, gdr_t g, gdr_mh_t mh, struct pin **out)
{
	int error = gdr_enter(call, g);

	if (error)
		return error;
	*out = pin_find(mh);
	if (*out && (*out)->g == g)
		return 0;
	gdr_leave(g);
	return gdrapi_refuse(call, EINVAL,
			     "no such handle: already unpinned, or from another gdr_open()");
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Can dma-bufs be mapped here? Does not initialize CUDA, which children forked later could not use.
 */
static bool gdrapi_maps_dmabuf(struct wh_windows *windows)
{
	int version;

	return strstr(settings.order, "dmabuf") &&
	       !wh_cuda_driver_version(windows->cuda, &version) && version >= DMABUF_VERSION;
}

/* Is any backend available? Initializes as little as possible. */
static bool gdrapi_can_map(struct wh_windows *windows)
{
	if (strstr(settings.order, "driver") && !wh_window_driver.start(windows))
		return true;
	gdrapi_log(DEBUG, "gdr_open", wh_error_text());
	if (strstr(settings.order, "rm") && !wh_window_rm.start(windows))
		return true;
	gdrapi_log(DEBUG, "gdr_open", wh_error_text());
	if (gdrapi_maps_dmabuf(windows))
		return true;
	gdrapi_log(ERROR, "gdr_open",
		   "no backend can map GPU memory here: driver needs /dev/gdrdrv, rm "
		   "/dev/nvidiactl, dmabuf "
		   "a driver with CUDA 13.3; allowed:");
	gdrapi_log(ERROR, "gdr_open", settings.order);
	return false;
}

/* A gdr that is closed, or a new one; it is CHANGING. NULL: no memory. */
static struct gdr *gdr_take(void)
{
	struct gdr *g = atomic_load_explicit(&all, memory_order_acquire);

	for (; g; g = g->next) {
		enum state closed = CLOSED;

		if (atomic_compare_exchange_strong(&g->state, &closed, CHANGING))
			return g;
	}
	g = calloc(1, sizeof(*g));
	if (!g)
		return NULL;
	g->state = CHANGING;
	pthread_mutex_init(&g->lock, NULL);
	g->next = atomic_load_explicit(&all, memory_order_relaxed);
	while (!atomic_compare_exchange_weak(&all, &g->next, g))
		;
	return g;
}

static void gdrapi_start(void)
{
	gdrapi_read_settings();
	pthread_atfork(table_hold, table_let_go, table_let_go);
}

gdr_t gdr_open(void)
{
	struct wh_cuda *cuda = NULL;
	struct gdr *g = gdr_take();

	pthread_once(&start_once, gdrapi_start);
	if (!g || wh_cuda_open(NULL, &cuda))
		goto err_give;
	if (wh_windows_new(cuda, &g->windows))
		goto err_close;
	wh_cuda_close(cuda); /* the windows hold it */
	cuda = NULL;
	if (!gdrapi_can_map(g->windows))
		goto err_windows;
	g->own_fd = g->windows->driver_fd >= 0 ? -1 : eventfd(0, EFD_CLOEXEC);
	g->fd = g->own_fd >= 0 ? g->own_fd : g->windows->driver_fd;
	if (g->fd < 0) {
		gdrapi_log(ERROR, "gdr_open", strerror(errno));
		goto err_windows;
	}
	wh_list_init(&g->pins);
	g->owner = getpid();
	atomic_store_explicit(&g->state, OPEN, memory_order_release);
	return g;

err_windows:
	wh_windows_free(g->windows);
err_close:
	wh_cuda_close(cuda);
err_give:
	if (g)
		atomic_store_explicit(&g->state, CLOSED, memory_order_release);
	return NULL;
}

/* Leave it for gdr_open(). */
static void gdr_give_back(struct gdr *g)
{
	wh_windows_free(g->windows);
	if (g->own_fd >= 0)
		close(g->own_fd);
	atomic_store_explicit(&g->state, CLOSED, memory_order_release);
}

/* In a child all of it is the parent's, its lock, too: only the child's own copies are closed. */
static int gdr_close_inherited(struct gdr *g)
{
	enum state open = OPEN;

	if (!atomic_compare_exchange_strong(&g->state, &open, CHANGING))
		return gdr_refuse("gdr_close", g, EINVAL); /* another thread closes it */
	pthread_mutex_init(&g->lock, NULL);
	gdr_give_back(g);
	return 0;
}

int gdr_close(gdr_t g)
{
	int error;

	if (gdr_state(g) == EACCES)
		return gdr_close_inherited(g);
	error = gdr_enter("gdr_close", g);
	if (error)
		return error;
	atomic_store_explicit(&g->state, CHANGING, memory_order_release);
	while (!wh_list_empty(&g->pins))
		pin_drop(wh_container(g->pins.next, struct pin, link));
	gdr_leave(g);
	gdr_give_back(g);
	return 0;
}

/* ---- pinning --------------------------------------------------------------------------------- */

int gdr_pin_buffer_v2(gdr_t g, unsigned long addr, size_t size, uint32_t flags, gdr_mh_t *handle)
{
	static const char call[] = "gdr_pin_buffer";
	struct wh_view_request request = { .address = addr,
					   .length = size,
					   .order = settings.order,
					   .pin_flags = flags,
					   .private = true,
					   .pages = true };
	struct wh_view *view;
	struct pin *pin;
	int error;

	if (!handle)
		return gdrapi_refuse(call, EINVAL, "the handle is NULL");
	if (flags & ~(uint32_t)GDR_PIN_FLAG_FORCE_PCIE)
		return gdrapi_refuse(call, EINVAL, "an unknown flag");
	error = gdr_enter(call, g);
	if (error)
		return error;
	error = wh_view_open(g->windows, &request, &view);
	if (error) {
		error = gdrapi_failed(call, error);
		goto out;
	}
	gdrapi_log(DEBUG, call, view->said);
	pin = pin_new(g, view);
	if (!pin) {
		wh_view_close(view);
		error = gdrapi_refuse(call, ENOMEM, "no memory for a handle");
		goto out;
	}
	wh_list_append(&g->pins, &pin->link);
	atomic_store_explicit(&pin->handle, pin->next, memory_order_release);
	handle->h = pin->next;
out:
	gdr_leave(g);
	return error;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t p2p_token, uint32_t va_space,
		   gdr_mh_t *handle)
{
	(void)p2p_token;
	(void)va_space;
	return gdr_pin_buffer_v2(g, addr, size, GDR_PIN_FLAG_DEFAULT, handle);
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle)
{
	struct pin *pin;
	int error = pin_enter("gdr_unpin_buffer", g, handle, &pin);

	if (error)
		return error;
	pin_drop(pin);
	gdr_leave(g);
	return 0;
}

/* Ask the module about a pin by its first range: one call pinned them all. */
static bool pin_ask_module(const struct pin *pin, unsigned long request, void *arg)
{
	const struct wh_view *view = pin->view;

	memcpy(arg, &view->spans[0].driver.handle, sizeof(uint64_t));
	return view->backend == &wh_window_driver &&
	       !ioctl(pin->g->windows->driver_fd, request, arg);
}

int gdr_get_callback_flag(gdr_t g, gdr_mh_t handle, int *flag)
{
	struct gdrdrv_callback_flag module = { 0 };
	static const char call[] = "gdr_get_callback_flag";
	struct pin *pin;
	int error = flag ? pin_enter(call, g, handle, &pin) :
			   gdrapi_refuse(call, EINVAL, "flag is NULL");

	if (error)
		return error;
	/* Without the module no mapping is ever revoked. */
	*flag = pin_ask_module(pin, GDRDRV_CALLBACK_FLAG, &module) && module.flag;
	gdr_leave(g);
	return 0;
}

/* ---- queries --------------------------------------------------------------------------------- */

int gdr_get_info_v2(gdr_t g, gdr_mh_t handle, gdr_info_v2_t *info)
{
	struct gdrdrv_info module = { 0 };
	static const char call[] = "gdr_get_info";
	struct pin *pin;
	int error = info ? pin_enter(call, g, handle, &pin) :
			   gdrapi_refuse(call, EINVAL, "info is NULL");

	if (error)
		return error;
	if (!pin_ask_module(pin, GDRDRV_INFO, &module))
		module = (struct gdrdrv_info){ 0 };
	*info = (gdr_info_v2_t){
		.va = pin->view->address,
		.mapped_size = pin->view->length,
		.page_size = GPU_PAGE_SIZE,
		.tm_cycles = module.tm_cycles,
		.cycles_per_ms = module.tsc_khz,
		.mapped = pin->view->base != NULL,
		.wc_mapping = pin->view->mapping == WH_MAPPING_WC,
		.mapping_type = (gdr_mapping_type_t)pin->view->mapping,
	};
	gdr_leave(g);
	return 0;
}

int gdr_get_info(gdr_t g, gdr_mh_t handle, struct info_v1 *out)
{
	gdr_info_v2_t info;
	int error = gdr_get_info_v2(g, handle, out ? &info : NULL);

	if (!error)
		*out = (struct info_v1){
			.va = info.va,
			.mapped_size = info.mapped_size,
			.page_size = info.page_size,
			.tm_cycles = info.tm_cycles,
			.cycles_per_ms = info.cycles_per_ms,
			.mapped = info.mapped,
			.wc_mapping = info.wc_mapping,
		};
	return error;
}

int gdr_get_mapping_type_string(gdr_mapping_type_t type, const char **pstr)
{
	static const char *const names[] = { "None", "Write Combining", "Caching", "Device" };

	_Static_assert(sizeof(names) / sizeof(names[0]) == GDR_MAPPING_TYPE_MAX, "names");
	if (!pstr || (unsigned)type >= GDR_MAPPING_TYPE_MAX)
		return gdrapi_refuse("gdr_get_mapping_type_string", EINVAL,
				     pstr ? "no such type" : "pstr is NULL");
	*pstr = names[type];
	return 0;
}

void gdr_runtime_get_version(int *major, int *minor)
{
	if (major)
		*major = GDR_API_MAJOR_VERSION;
	if (minor)
		*minor = GDR_API_MINOR_VERSION;
}

int gdr_driver_get_version(gdr_t g, int *major, int *minor)
{
	static const char call[] = "gdr_driver_get_version";
	uint32_t version;
	int error = major && minor ? gdr_enter(call, g) :
				     gdrapi_refuse(call, EINVAL, "an argument is NULL");

	if (error)
		return error;
	/* Without a module: callers compare it with a minimum, so return the library's version. */
	version = g->windows->driver_fd >= 0 ? g->windows->driver_version : GDR_API_VERSION;
	*major = (int)(version >> MAJOR_VERSION_SHIFT);
	*minor = (int)(version & MINOR_VERSION_MASK);
	gdr_leave(g);
	return 0;
}

/* Would the next pin use a dma-buf? Backends before it in the order come first. */
static bool gdrapi_uses_dmabuf(struct gdr *g)
{
	const char *dmabuf = strstr(settings.order, "dmabuf"),
		   *driver = strstr(settings.order, "driver"), *rm = strstr(settings.order, "rm");

	return dmabuf && !(driver && driver < dmabuf && g->windows->driver_fd >= 0) &&
	       !(rm && rm < dmabuf && g->windows->rm) && gdrapi_maps_dmabuf(g->windows);
}

int gdr_get_attribute(gdr_t g, gdr_attr_t attr, int *v)
{
	struct gdrdrv_attribute module = { .attribute = (uint32_t)attr };
	static const char call[] = "gdr_get_attribute";
	bool dmabuf, asked;
	int error;

	if (!v || attr < GDR_ATTR_USE_PERSISTENT_MAPPING || attr >= GDR_ATTR_MAX)
		return gdrapi_refuse(call, EINVAL, v ? "no such attribute" : "v is NULL");
	error = gdr_enter(call, g);
	if (error)
		return error;
	dmabuf = gdrapi_uses_dmabuf(g);
	asked = attr != GDR_ATTR_USING_DMA_BUF_MMAP && !dmabuf && g->windows->driver_fd >= 0;
	if (attr == GDR_ATTR_USING_DMA_BUF_MMAP)
		*v = dmabuf;
	else if (asked) /* a module that does not know the attribute has neither */
		*v = !ioctl(g->windows->driver_fd, GDRDRV_ATTRIBUTE, &module) && module.value;
	else /* without the module, pinned memory is always held */
		*v = attr == GDR_ATTR_USE_PERSISTENT_MAPPING || WH_WINDOW_ALWAYS_PCIE;
	gdr_leave(g);
	return 0;
}

/* ---- mapping --------------------------------------------------------------------------------- */

static int pin_map(struct pin *pin, enum wh_mapping mapping, void **va, size_t size)
{
	static const char call[] = "gdr_map";
	struct wh_view *view = pin->view;
	int error;

	if (!size || size > view->length)
		return gdrapi_refuse(call, EINVAL, "the size is 0 or exceeds the pinned range");
	/* GDRCopy's mapping starts at the page of the pinned address, and some callers do not add
	 * the offset into that page. */
	if (view->wanted & GPU_PAGE_OFFSET)
		return gdrapi_refuse(
			call, EINVAL,
			"the pinned address is not a multiple of 64 KiB: pin from the start of its "
			"page");
	error = wh_view_map(view, mapping);
	if (error)
		return gdrapi_failed(call, error);
	pin->length = view->length;
	pin->copy = view->copy;
	atomic_store_explicit(&pin->base, view->base, memory_order_release);
	*va = view->base;
	return 0;
}

int gdr_map_v2(gdr_t g, gdr_mh_t handle, void **va, size_t size, int flags)
{
	static const char call[] = "gdr_map";
	struct pin *pin;
	int error;

	if (!va || flags < GDR_MAP_FLAG_DEFAULT || flags > GDR_MAP_FLAG_REQ_DEVICE_MAPPING)
		return gdrapi_refuse(call, EINVAL, va ? "an unknown flag" : "va is NULL");
	error = pin_enter(call, g, handle, &pin);
	if (error)
		return error;
	error = pin_map(pin, (enum wh_mapping)flags, va, size);
	gdr_leave(g);
	return error;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	return gdr_map_v2(g, handle, va, size, GDR_MAP_FLAG_DEFAULT);
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	static const char call[] = "gdr_unmap";
	struct pin *pin;
	int error = pin_enter(call, g, handle, &pin);

	(void)size; /* unmaps all of it */
	if (error)
		return error;
	if (!pin->base || pin->base != va) {
		error = gdrapi_refuse(call, EINVAL,
				      pin->base ? "va is not what gdr_map() returned" :
						  "it is not mapped");
	} else {
		atomic_store_explicit(&pin->base, NULL, memory_order_release);
		wh_view_unmap(pin->view);
	}
	gdr_leave(g);
	return error;
}

/* ---- copying --------------------------------------------------------------------------------- */

/* The handle's pin, if its mapping contains all of [at, at+size); else NULL. */
static struct pin *pin_mapped_at(gdr_mh_t handle, const void *at, size_t size)
{
	struct pin *pin = pin_find(handle);
	unsigned char *base = pin ? atomic_load_explicit(&pin->base, memory_order_acquire) : NULL;
	uintptr_t offset = (uintptr_t)at - (uintptr_t)base;

	return base && offset <= pin->length && size <= pin->length - offset ? pin : NULL;
}

#define NOT_MAPPED "the handle is not mapped, or the range is not within its mapping"

int gdr_copy_to_mapping(gdr_mh_t handle, void *map_d_ptr, const void *h_ptr, size_t size)
{
	const struct pin *pin;

	if (!size)
		return 0;
	pin = pin_mapped_at(handle, map_d_ptr, size);
	if (!pin)
		return gdrapi_refuse("gdr_copy_to_mapping", EINVAL, NOT_MAPPED);
	wh_copy_to(pin->copy, map_d_ptr, h_ptr, size);
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *h_ptr, const void *map_d_ptr, size_t size)
{
	const struct pin *pin;

	if (!size)
		return 0;
	pin = pin_mapped_at(handle, map_d_ptr, size);
	if (!pin)
		return gdrapi_refuse("gdr_copy_from_mapping", EINVAL, NOT_MAPPED);
	wh_copy_from(pin->copy, h_ptr, map_d_ptr, size);
	return 0;
}
