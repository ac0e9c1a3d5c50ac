/* SPDX-License-Identifier: Apache-2.0 */
/* Memories as the command line names them: parsing MEM, its names, and allocating it. */
#include "memory.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	uint32_t kind;
} kinds[] = {
	/* The first name of a kind is the one that is shown. */
	{ "host", WH_MEMORY_SHARED },     { "shared", WH_MEMORY_SHARED },
	{ "pinned", WH_MEMORY_PINNED },   { "pageable", WH_MEMORY_PAGEABLE },
	{ "huge", WH_MEMORY_HUGE },       { "mapped", WH_MEMORY_MAPPED },
	{ "device", WH_MEMORY_DEVICE },   { "vmm", WH_MEMORY_VMM },
	{ "managed", WH_MEMORY_MANAGED }, { "pool", WH_MEMORY_POOL },
	{ "file", WH_MEMORY_FILE },
};

const char *memory_kind_name(uint32_t kind)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].kind == kind)
			return kinds[i].name;
	return "other";
}

bool memory_on_gpu(uint32_t kind)
{
	return kind == WH_MEMORY_DEVICE || kind == WH_MEMORY_VMM || kind == WH_MEMORY_POOL ||
	       kind == WH_MEMORY_MANAGED;
}

bool memory_needs_gpu(uint32_t kind)
{
	return memory_on_gpu(kind) || kind == WH_MEMORY_PINNED || kind == WH_MEMORY_MAPPED;
}

static size_t hex_digits(const char *text, size_t most)
{
	size_t n = 0;

	while (n < most && isxdigit((unsigned char)text[n]))
		n++;
	return n;
}

/* The length of the PCI address that `text` starts with; 0: none. */
static size_t pci_length(const char *text)
{
	size_t domain = hex_digits(text, 8);
	const char *rest = text + domain;

	if (domain < 4 || rest[0] != ':' || hex_digits(rest + 1, 2) != 2 || rest[3] != ':' ||
	    hex_digits(rest + 4, 2) != 2 || rest[6] != '.' || !hex_digits(rest + 7, 1))
		return 0;
	return domain + 8;
}

/* The length of the location that `text` starts with, "cuda:..." or "numa:..."; 0: none. */
static size_t location_length(const char *text)
{
	size_t head = strlen("cuda:"), length;

	if (strncmp(text, "cuda:", head) != 0 && strncmp(text, "numa:", head) != 0)
		return 0;
	length = text[0] == 'c' ? pci_length(text + head) : 0;
	return head + (length ? length : strcspn(text + head, ":"));
}

/* The kind that `text` starts with; 0: none. */
static uint32_t kind_of(const char *text, size_t length)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (kinds[i].kind != WH_MEMORY_FILE && strlen(kinds[i].name) == length &&
		    memcmp(kinds[i].name, text, length) == 0)
			return kinds[i].kind;
	return 0;
}

const char *memory_parse(const char *text, struct memory *out, const char **rest)
{
	const size_t head = strlen("cuda:");
	size_t length = strcspn(text, ":"), location;

	memset(out, 0, sizeof(*out)); /* padding as well: memories are compared as bytes */
	out->kind = kind_of(text, length);
	if (out->kind)
		text += length + (text[length] == ':');
	else if (!(length == 4 && (!strncmp(text, "cuda", 4) || !strncmp(text, "numa", 4))))
		return "starts with no kind of memory: write host, pinned, pageable, huge, mapped, "
		       "cuda:0, vmm:cuda:0, pool:cuda:0 or managed:cuda:0";
	location = location_length(text);
	if (!out->kind && *text == 'n')
		return "has a location but no kind: write host:numa:0";
	if (!out->kind)
		out->kind = WH_MEMORY_DEVICE;
	if (!location && memory_on_gpu(out->kind))
		return "names no GPU: write cuda:0, cuda:GPU-UUID or cuda:0000:65:00.0";
	if (location >= sizeof(out->location))
		return "has a location whose name is too long";
	if (location && location == head)
		return *text == 'c' ? "has no GPU after cuda:" : "has no number after numa:";
	if (location && *text == 'n' && memory_on_gpu(out->kind))
		return "is GPU memory, which is on no NUMA node: write cuda:0";
	if (location && *text == 'n' && head + strspn(text + head, "0123456789") != location)
		return "has no number after numa:";
	snprintf(out->location, sizeof(out->location), "%.*s", (int)location, text);
	snprintf(out->name, sizeof(out->name), "%s%s%s",
		 out->kind == WH_MEMORY_DEVICE ? "" : memory_kind_name(out->kind),
		 location && out->kind != WH_MEMORY_DEVICE ? ":" : "", out->location);
	text += location;
	*rest = text + (*text == ':');
	return NULL;
}

int memory_alloc(struct wh_engine *engine, const struct memory *memory, uint64_t length, void **out)
{
	struct wh_memory_options options = {
		.size = sizeof(options),
		.kind = memory->kind,
		.location = memory->location[0] ? memory->location : NULL,
	};

	return wh_memory_alloc(engine, length, &options, out);
}
