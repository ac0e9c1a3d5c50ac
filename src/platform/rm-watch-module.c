/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module libwherry-rm-watch.so: learning the resource manager's objects behind CUDA memory from
 * libcuda's own request to the kernel.
 *
 * When CUDA exports memory as a dma-buf, it passes the list of objects to the kernel in an ioctl.
 * libcuda calls ioctl() through a slot of its global offset table, like any function of another
 * library. For the duration of one call the module points that slot at watch_ioctl(). Rules:
 *
 * - watch_ioctl() always forwards the call. It reads the request only on the thread that exports,
 *   and only during the export. For other threads it adds one jump.
 * - Two copies of this module may be loaded (by a libwherry.so and a libgdrapi.so in different
 *   folders). A copy changes slots under the dynamic linker's lock (dl_iterate_phdr()). If it finds
 *   a slot changed by another copy, it waits: two copies that forwarded to each other would recurse
 *   for ever. A slot that stays changed belongs to a tool; the module forwards to that tool.
 * - A slot is restored only if it still points at watch_ioctl(). If someone has redirected it
 *   since, they forward to us, so this code must stay loaded for good (-z nodelete).
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform/rm-abi.h"
#include "platform/rm-watch.h"

#if defined(__x86_64__)
#define SLOT_LAZY R_X86_64_JUMP_SLOT
#define SLOT_BOUND R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define SLOT_LAZY R_AARCH64_JUMP_SLOT
#define SLOT_BOUND R_AARCH64_GLOB_DAT
#else
#define SLOT_LAZY 0xffffffffu
#define SLOT_BOUND 0xffffffffu
#endif

#define SLOTS 8

/* How long to wait for another copy to restore a slot: its call takes about 100 us. */
#define PATIENCE_STEPS 200
#define PATIENCE_US 500

typedef int ioctl_function(int fd, unsigned long request, void *arg);

struct seen {
	struct wh_rm_parts *parts;
	unsigned long unlike; /* a request of another size; 0: none */
	unsigned too_many; /* objects in a list that does not fit; 0: it fits */
};

/* The function to forward to: the former value of libcuda's slot. Stored before the slot is
 * changed. */
static _Atomic(ioctl_function *) before;
static _Thread_local struct seen *watching;
/* One watch at a time in this copy of the module. */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
/* A tool's redirection that stays: forward to it. */
static _Atomic(uintptr_t) accepted;

/* ---- watching -------------------------------------------------------------------------------- */

static void seen_add(struct seen *seen, const struct rm_export_dma_buf *e)
{
	struct wh_rm_parts *parts = seen->parts;

	/* A long list takes several requests; index 0 begins a new list. */
	if (!e->index)
		parts->count = 0;
	parts->client = e->client;
	for (unsigned i = 0; i < e->objects && i < RM_EXPORT_OBJECTS; i++) {
		if (parts->count == WH_RM_PARTS) {
			seen->too_many = e->total_objects;
			return;
		}
		parts->part[parts->count++] = (struct wh_rm_part){
			.object = e->handles[i],
			.offset = e->offsets[i],
			.length = e->sizes[i],
		};
	}
}

/* Replaces ioctl() in libcuda, on any thread. Reads a third argument always, as ioctl() does. */
static int watch_ioctl(int fd, unsigned long request, void *arg)
{
	ioctl_function *forward = atomic_load_explicit(&before, memory_order_acquire);
	struct seen *seen = watching;

	if (seen && _IOC_TYPE(request) == 'F' && _IOC_NR(request) == RM_ESCAPE_EXPORT_DMA_BUF) {
		if (_IOC_SIZE(request) == sizeof(struct rm_export_dma_buf))
			seen_add(seen, arg);
		else
			seen->unlike = request;
	}
	return forward(fd, request, arg);
}

/* ---- the slots ------------------------------------------------------------------------------- */

struct slots {
	const struct link_map *map; /* of libcuda */
	unsigned count;
	_Atomic(uintptr_t) *slot[SLOTS];
	uintptr_t old[SLOTS]; /* former value; 0: this slot was not changed */
	uintptr_t code, code_end; /* the range at which the library is mapped */
	uintptr_t fixed, fixed_end; /* pages that the linker has made read-only; none: 0, 0 */
	uintptr_t other; /* another copy's or a tool's redirection; 0: none */
	int error; /* of mprotect(); 0: none */
};

/* The pointer that an entry of the dynamic section stands for. glibc has added the load address to
 * most entries already. */
static const void *dynamic_pointer(const struct link_map *map, uintptr_t value)
{
	return (const void *)(value < map->l_addr ? map->l_addr + value : value);
}

static void slots_find_in(struct slots *slots, const ElfW(Rela) * table, size_t bytes,
			  const ElfW(Sym) * symbols, const char *names)
{
	for (size_t i = 0; table && i < bytes / sizeof(*table) && slots->count < SLOTS; i++) {
		uint32_t type = (uint32_t)ELF64_R_TYPE(table[i].r_info);

		if ((type != SLOT_LAZY && type != SLOT_BOUND) ||
		    strcmp(names + symbols[ELF64_R_SYM(table[i].r_info)].st_name, "ioctl") != 0)
			continue;
		slots->slot[slots->count++] = (void *)(slots->map->l_addr + table[i].r_offset);
	}
}

static void slots_find(struct slots *slots)
{
	const ElfW(Rela) *plt = NULL, *rela = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	size_t plt_bytes = 0, rela_bytes = 0;

	for (const ElfW(Dyn) *d = slots->map->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL:
			plt = dynamic_pointer(slots->map, d->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			plt_bytes = d->d_un.d_val;
			break;
		case DT_RELA:
			rela = dynamic_pointer(slots->map, d->d_un.d_ptr);
			break;
		case DT_RELASZ:
			rela_bytes = d->d_un.d_val;
			break;
		case DT_SYMTAB:
			symbols = dynamic_pointer(slots->map, d->d_un.d_ptr);
			break;
		case DT_STRTAB:
			names = dynamic_pointer(slots->map, d->d_un.d_ptr);
			break;
		default:
			break;
		}
	}
	if (!symbols || !names)
		return;
	slots_find_in(slots, plt, plt_bytes, symbols, names);
	slots_find_in(slots, rela, rela_bytes, symbols, names);
}

/* Is this libcuda? If so, note the range of its code and of its read-only pages. */
static bool slots_match(struct slots *slots, const struct dl_phdr_info *info)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	if (info->dlpi_addr != slots->map->l_addr)
		return false;
	slots->code = UINTPTR_MAX;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + p->p_vaddr, to = from + p->p_memsz;

		if (p->p_type == PT_LOAD && from < slots->code)
			slots->code = from;
		if (p->p_type == PT_LOAD && to > slots->code_end)
			slots->code_end = to;
		if (p->p_type == PT_GNU_RELRO) {
			slots->fixed = from / page * page;
			slots->fixed_end = to / page * page;
		}
	}
	/* Another library may have the same load address; its dynamic section lies elsewhere. */
	return (uintptr_t)slots->map->l_ld - slots->code < slots->code_end - slots->code;
}

/* Change a slot from `old` to `value`. False: it does not hold `old`, or mprotect() failed. */
static bool slot_swap(struct slots *slots, _Atomic(uintptr_t) *slot, uintptr_t old, uintptr_t value)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)slot / page * page;
	bool fixed = (uintptr_t)slot >= slots->fixed && (uintptr_t)slot < slots->fixed_end, swapped;

	if (fixed && mprotect((void *)start, page, PROT_READ | PROT_WRITE)) {
		slots->error = errno;
		return false;
	}
	swapped = atomic_compare_exchange_strong(slot, &old, value);
	if (fixed)
		mprotect((void *)start, page, PROT_READ);
	return swapped;
}

/* Is the slot not bound yet? Such a slot points into the library's own code; forwarding there would
 * bind it and overwrite our redirection. */
static bool slot_is_lazy(const struct slots *slots, uintptr_t value)
{
	return value - slots->code < slots->code_end - slots->code;
}

static void slot_redirect(struct slots *slots, unsigned i)
{
	uintptr_t old = *slots->slot[i], direct = (uintptr_t)ioctl;

	if (old == (uintptr_t)watch_ioctl) {
		/* A tool has restored our address, which it had saved. */
		slots->old[i] = (uintptr_t)atomic_load_explicit(&before, memory_order_acquire);
		return;
	}
	if (old != direct && !slot_is_lazy(slots, old) && old != accepted) {
		slots->other = old;
		return;
	}
	atomic_store_explicit(&before, (ioctl_function *)(slot_is_lazy(slots, old) ? direct : old),
			      memory_order_release);
	if (slot_swap(slots, slots->slot[i], old, (uintptr_t)watch_ioctl))
		slots->old[i] = old;
}

/* Called by dl_iterate_phdr() under the linker's lock. 1 ends the walk. */
static int slots_redirect(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct slots *slots = arg;

	(void)size;
	if (!slots_match(slots, info))
		return 0;
	slots_find(slots);
	for (unsigned i = 0; i < slots->count && !slots->other; i++)
		slot_redirect(slots, i);
	return 1;
}

static int slots_restore(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct slots *slots = arg;

	(void)size;
	if (info->dlpi_addr != slots->map->l_addr)
		return 0;
	for (unsigned i = 0; i < slots->count; i++) {
		if (slots->old[i])
			slot_swap(slots, slots->slot[i], (uintptr_t)watch_ioctl, slots->old[i]);
	}
	return 1;
}

/* Redirect all slots, or none: slots->other then holds the redirection in the way. */
static void slots_try_redirect(struct slots *slots)
{
	const struct link_map *map = slots->map;

	*slots = (struct slots){ .map = map };
	dl_iterate_phdr(slots_redirect, slots);
	if (slots->other)
		dl_iterate_phdr(slots_restore, slots);
}

static void slots_redirect_all(struct slots *slots)
{
	slots_try_redirect(slots);
	for (int step = 0; slots->other && step < PATIENCE_STEPS; step++) {
		usleep(PATIENCE_US);
		slots_try_redirect(slots);
	}
	/* Accept what is left as tools' redirections: at most one for each slot. */
	for (unsigned i = 0; slots->other && i < SLOTS; i++) {
		accepted = slots->other;
		slots_try_redirect(slots);
	}
}

/* ---- the module's function ------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) static int watch_fail(char *why, size_t size, int error,
							    const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return error;
}

static int watch_result(const struct slots *slots, const struct seen *seen, char *why, size_t size)
{
	if (slots->error)
		return watch_fail(why, size, slots->error,
				  "mprotect of libcuda's table of functions: %s",
				  strerror(slots->error));
	if (!slots->count)
		return watch_fail(why, size, EOPNOTSUPP,
				  "libcuda calls ioctl() in a way that cannot be watched; use "
				  "another backend");
	if (seen->unlike)
		return watch_fail(
			why, size, EOPNOTSUPP,
			"libcuda's request to export memory (ioctl 0x%lx) is unknown; use "
			"another backend",
			seen->unlike);
	if (seen->too_many)
		return watch_fail(why, size, EFBIG,
				  "made of %u objects, more than %d; open several windows",
				  seen->too_many, WH_RM_PARTS);
	return 0;
}

static int watch_export(void *libcuda, void (*export)(void *arg), void *arg,
			struct wh_rm_parts *out, char *why, size_t size)
{
	struct seen seen = { .parts = out };
	struct slots slots = { 0 };

	if (dlinfo(libcuda, RTLD_DI_LINKMAP, &slots.map))
		return watch_fail(why, size, EOPNOTSUPP, "dlinfo: %s", dlerror());
	pthread_mutex_lock(&watch_lock);
	slots_redirect_all(&slots);
	watching = &seen;
	export(arg);
	watching = NULL;
	dl_iterate_phdr(slots_restore, &slots);
	pthread_mutex_unlock(&watch_lock);
	return watch_result(&slots, &seen, why, size);
}

static const struct wh_rm_watch_module module = {
	.version = WH_RM_WATCH_MODULE,
	.watch = watch_export,
};

__attribute__((visibility("default"))) const struct wh_rm_watch_module *wh_rm_watch_module(void);

const struct wh_rm_watch_module *wh_rm_watch_module(void)
{
	return &module;
}
