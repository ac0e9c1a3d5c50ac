/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kind of memory and where, as all commands take it: [KIND][:PLACE], "host", "pinned",
 * "pinned:numa:1", "cuda:0", "vmm:cuda:GPU-8d2f", "managed:cuda:0000:65:00.0".
 *
 * PLACE is cuda:GPU or numa:N. A GPU is a number, a UUID or its start, or a PCI address, which is
 * told from a number by its form: four to eight hexadecimal digits, two, two, a dot and one. So a
 * size behind it ("cuda:0000:65:00.0:8GiB") is never mistaken for a part of it.
 */
#ifndef TOOLS_MEMORY_H
#define TOOLS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

struct memory {
	uint32_t kind; /* enum wh_memory_kind */
	char location[64]; /* as wh_memory_options has it; "": anywhere */
	char name[80]; /* as it is written, in one way only: "cuda:0", not "device:cuda:0" */
};

/* What the help and the man pages say of it. */
#define MEMORY_HELP                                                                                \
	"MEM is [KIND:][PLACE]. KIND: host (a memfd that other engines on the host can map, the "  \
	"same as shared), pinned (the same, page-locked for GPUs), pageable, huge, mapped (the "   \
	"driver's, page-locked), device, vmm, pool, managed. PLACE: cuda:GPU, where GPU is a "     \
	"number, GPU-UUID (its start will do) or a PCI address; or numa:N. cuda:0 alone is "       \
	"device:cuda:0; vmm:cuda:1 is GPU memory that other processes can map in any container; "  \
	"pinned:cuda:0 is host memory near that GPU."

/* Read one from the start of `text`. *rest is what follows: "" or behind a colon. NULL, or what is
 * wrong with it, as the end of a sentence that starts with the text. All of *out is written. */
const char *memory_parse(const char *text, struct memory *out, const char **rest);

/* The name of a kind: "host", "device". */
const char *memory_kind_name(uint32_t kind);

/* May the CPU not touch it? */
bool memory_on_gpu(uint32_t kind);
/* Does it take a GPU's driver? */
bool memory_needs_gpu(uint32_t kind);

/* Bytes of memory that this process may still take, by MemAvailable and by the limits of its
 * control groups (of either version); with what is left of swap unless it is `locked`, and free
 * huge pages. Files are read below `root`, by default "". UINT64_MAX: not known. (memory-room.c) */
uint64_t memory_room(const char *root, bool locked);

/* Is there room for so many bytes? False with a text: "that takes 1.0 TiB of memory, and there are
 * 22.4 GiB". To be asked before anything is touched: the kernel gives addresses freely, and then
 * ends a process. */
#define MEMORY_TEXT 128
bool memory_fits(const char *root, uint64_t bytes, bool locked, char text[MEMORY_TEXT]);

/* wh_memory_alloc() of it. */
int memory_alloc(struct wh_engine *engine, const struct memory *memory, uint64_t length,
		 void **out);

#endif
