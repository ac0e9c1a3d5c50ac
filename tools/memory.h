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
	char location[64]; /* as in wh_memory_options; "": anywhere */
	char name[80]; /* its one canonical name: "cuda:0", not "device:cuda:0" */
};

/* Explains MEM in the help and the man pages. */
#define MEMORY_HELP                                                                                \
	"MEM is [KIND:][LOCATION]. KIND: host (a memfd that other engines on the host can map, "   \
	"the "                                                                                     \
	"same as shared), pinned (the same, page-locked for GPUs), pageable, huge, mapped (the "   \
	"driver's, page-locked), device, vmm, pool, managed. LOCATION: cuda:GPU, where GPU is a "  \
	"number, GPU-UUID (or its start) or a PCI address; or numa:N. cuda:0 alone is "            \
	"device:cuda:0; vmm:cuda:1 is GPU memory that other processes can map in any container; "  \
	"pinned:cuda:0 is host memory near that GPU."

/* Parse a memory at the start of `text`. *rest is what follows: "" or the text after a colon. NULL,
 * or the error as the end of a sentence that starts with the text. Writes all of *out. */
const char *memory_parse(const char *text, struct memory *out, const char **rest);

/* The name of a kind: "host", "device". */
const char *memory_kind_name(uint32_t kind);

/* GPU memory, which the CPU must not touch. */
bool memory_on_gpu(uint32_t kind);
/* Memory whose allocation takes a GPU's driver. */
bool memory_needs_gpu(uint32_t kind);

/* Bytes of memory that this process may still take, by MemAvailable and by the limits of its
 * control groups (of either version), with free swap unless it is `locked`, and with free huge
 * pages. Files are read below `root`, by default "". UINT64_MAX: not known. (memory-room.c) */
uint64_t memory_room(const char *root, bool locked);

/* Is there room for so many bytes? False with a text: "that takes 1.0 TiB of memory, and there are
 * 22.4 GiB". Call it before touching anything: the kernel hands out addresses freely, and kills a
 * process when the pages run out. */
#define MEMORY_TEXT 128
bool memory_fits(const char *root, uint64_t bytes, bool locked, char text[MEMORY_TEXT]);

/* Allocate `memory` with wh_memory_alloc(). */
int memory_alloc(struct wh_engine *engine, const struct memory *memory, uint64_t length,
		 void **out);

#endif
