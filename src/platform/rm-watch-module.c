/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module libwherry-rm-watch.so: reading which objects libcuda's memory is made of from its own
 * request to the kernel.
 *
 * When CUDA exports memory as a dma-buf it hands the kernel the very list, in an ioctl. libcuda
 * calls ioctl() through a slot of its global offset table, as any library calls what another one
 * defines; the slot is pointed at watch() for the length of one call. Rules:
 *
 * - watch() always forwards, and looks only on the thread that asked, while it asks. Other threads
 *   that pass by in the meantime notice nothing but one more jump.
 * - Two copies of this module may be loaded (libwherry.so and libgdrapi.so of different places).
 * Whoever
 *   changes a slot holds the dynamic linker's lock (dl_iterate_phdr()), and who finds it changed by
 * another waits: two that forwarded to each other would never end. One that stays changed belongs
 * to a tool, which is forwarded to.
 * - A slot is put back only if it is still ours. If someone else has redirected it since, they
 *   forward to us, and so this code must stay in memory for good (-z nodelete).
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

/* For how long another library's redirection is waited out: its call takes some 100 us. */
#define PATIENCE_STEPS 200
#define PATIENCE_US 500

typedef int ioctl_function(int fd, unsigned long request, void *arg);

struct seen {
	struct wh_rm_parts *parts;
	unsigned long unlike; /* one that looks different; 0: none */
	unsigned too_many; /* objects */
};

/* What libcuda's slot held before: whom to forward to. Set before the slot is. */
static _Atomic(ioctl_function *) before;
static _Thread_local struct seen *watching;
/* One at a time in this library. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
/* A tool's redirection that has come to stay. */
static _Atomic(uintptr_t) accepted;

/* ---- watching -------------------------------------------------------------------------------- */

static void take(struct seen *seen, const struct rm_export_dma_buf *e)
{
	struct wh_rm_parts *parts = seen->parts;

	/* A long list comes in several requests; one that begins anew is another attempt. */
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

/* In place of ioctl(), called by libcuda on any thread. Takes a third argument always, as ioctl()
 * itself does. */
static int watch(int fd, unsigned long request, void *arg)
{
	ioctl_function *forward = atomic_load_explicit(&before, memory_order_acquire);
	struct seen *seen = watching;

	if (seen && _IOC_TYPE(request) == 'F' && _IOC_NR(request) == RM_ESCAPE_EXPORT_DMA_BUF) {
		if (_IOC_SIZE(request) == sizeof(struct rm_export_dma_buf))
			take(seen, arg);
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
	uintptr_t old[SLOTS]; /* what it held; 0: it was not changed */
	uintptr_t code, code_end; /* where the library is mapped */
	uintptr_t fixed, fixed_end; /* pages that the linker has made read-only; none: 0, 0 */
	uintptr_t other; /* somebody's redirection, in the way; 0: none */
	int error; /* of mprotect() */
};

/* Addresses in the dynamic section: glibc has added where the library lies. */
static const void *at(const struct link_map *map, uintptr_t value)
{
	return (const void *)(value < map->l_addr ? map->l_addr + value : value);
}

static void find_in(struct slots *slots, const ElfW(Rela) * table, size_t bytes,
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

static void find_slots(struct slots *slots)
{
	const ElfW(Rela) *plt = NULL, *rela = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	size_t plt_bytes = 0, rela_bytes = 0;

	for (const ElfW(Dyn) *d = slots->map->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL:
			plt = at(slots->map, d->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			plt_bytes = d->d_un.d_val;
			break;
		case DT_RELA:
			rela = at(slots->map, d->d_un.d_ptr);
			break;
		case DT_RELASZ:
			rela_bytes = d->d_un.d_val;
			break;
		case DT_SYMTAB:
			symbols = at(slots->map, d->d_un.d_ptr);
			break;
		case DT_STRTAB:
			names = at(slots->map, d->d_un.d_ptr);
			break;
		default:
			break;
		}
	}
	if (!symbols || !names)
		return;
	find_in(slots, plt, plt_bytes, symbols, names);
	find_in(slots, rela, rela_bytes, symbols, names);
}

/* Is this the library, then where is it, and which of its pages are read-only by now? */
static bool is_it(struct slots *slots, const struct dl_phdr_info *info)
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
	/* The dynamic section of another library with the same load address would not lie in it. */
	return (uintptr_t)slots->map->l_ld - slots->code < slots->code_end - slots->code;
}

/* What a slot is to hold instead of `old`; false: somebody else has changed it. */
static bool swap(struct slots *slots, _Atomic(uintptr_t) *slot, uintptr_t old, uintptr_t value)
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

/* Not bound yet: the call would bind itself over us on its way. */
static bool is_lazy(const struct slots *slots, uintptr_t value)
{
	return value - slots->code < slots->code_end - slots->code;
}

static void redirect_slot(struct slots *slots, unsigned i)
{
	uintptr_t old = *slots->slot[i], direct = (uintptr_t)ioctl;

	if (old == (uintptr_t)watch) {
		/* Left there by a tool that had saved it. */
		slots->old[i] = (uintptr_t)atomic_load_explicit(&before, memory_order_acquire);
		return;
	}
	if (old != direct && !is_lazy(slots, old) && old != accepted) {
		slots->other = old;
		return;
	}
	atomic_store_explicit(&before, (ioctl_function *)(is_lazy(slots, old) ? direct : old),
			      memory_order_release);
	if (swap(slots, slots->slot[i], old, (uintptr_t)watch))
		slots->old[i] = old;
}

/* Under the linker's lock. 1 ends the walk. */
static int redirect(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct slots *slots = arg;

	(void)size;
	if (!is_it(slots, info))
		return 0;
	find_slots(slots);
	for (unsigned i = 0; i < slots->count && !slots->other; i++)
		redirect_slot(slots, i);
	return 1;
}

static int restore(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct slots *slots = arg;

	(void)size;
	if (info->dlpi_addr != slots->map->l_addr)
		return 0;
	for (unsigned i = 0; i < slots->count; i++) {
		if (slots->old[i])
			swap(slots, slots->slot[i], (uintptr_t)watch, slots->old[i]);
	}
	return 1;
}

/* Redirect all slots, or none and say who is in the way. */
static void try_redirect(struct slots *slots)
{
	const struct link_map *map = slots->map;

	*slots = (struct slots){ .map = map };
	dl_iterate_phdr(redirect, slots);
	if (slots->other)
		dl_iterate_phdr(restore, slots);
}

static void redirect_all(struct slots *slots)
{
	try_redirect(slots);
	for (int step = 0; slots->other && step < PATIENCE_STEPS; step++) {
		usleep(PATIENCE_US);
		try_redirect(slots);
	}
	/* At most one for each slot. */
	for (unsigned i = 0; slots->other && i < SLOTS; i++) {
		accepted = slots->other;
		try_redirect(slots);
	}
}

/* ---- the module's function ------------------------------------------------------------------- */

__attribute__((format(printf, 4, 5))) static int refuse(char *why, size_t size, int error,
							const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return error;
}

static int judge(const struct slots *slots, const struct seen *seen, char *why, size_t size)
{
	if (slots->error)
		return refuse(why, size, slots->error,
			      "mprotect of libcuda's table of functions: %s",
			      strerror(slots->error));
	if (!slots->count)
		return refuse(
			why, size, EOPNOTSUPP,
			"libcuda calls no ioctl() that could be watched; use another backend");
	if (seen->unlike)
		return refuse(why, size, EOPNOTSUPP,
			      "libcuda's request to export memory (ioctl 0x%lx) is not one that is "
			      "known; use another backend",
			      seen->unlike);
	if (seen->too_many)
		return refuse(why, size, EFBIG,
			      "made of %u pieces, of which %d fit; open several windows",
			      seen->too_many, WH_RM_PARTS);
	return 0;
}

static int watch_export(void *libcuda, void (*export)(void *arg), void *arg,
			struct wh_rm_parts *out, char *why, size_t size)
{
	struct seen seen = { .parts = out };
	struct slots slots = { 0 };

	if (dlinfo(libcuda, RTLD_DI_LINKMAP, &slots.map))
		return refuse(why, size, EOPNOTSUPP, "dlinfo: %s", dlerror());
	pthread_mutex_lock(&one_at_a_time);
	redirect_all(&slots);
	watching = &seen;
	export(arg);
	watching = NULL;
	dl_iterate_phdr(restore, &slots);
	pthread_mutex_unlock(&one_at_a_time);
	return judge(&slots, &seen, why, size);
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
