/* SPDX-License-Identifier: Apache-2.0 */
/* libwherry's allocations: each is counted, and some fail. */
#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "calls.h"
#include "world.h"

#define BUCKETS (1u << 14)

struct block {
	void *at, *from; /* from: the code that allocated it */
	size_t size;
	struct block *next;
};

int64_t sim_live_blocks;

static struct block *buckets[BUCKETS];
static struct block *spare;

static struct block **bucket_of(const void *address)
{
	return &buckets[((uintptr_t)address >> 4) * 2654435761u >> 12 & (BUCKETS - 1)];
}

static void *note(void *address, size_t size, void *from)
{
	struct block *block = spare;

	if (!address)
		return NULL;
	if (block)
		spare = block->next;
	else
		block = malloc(sizeof(*block));
	*block = (struct block){ address, from, size, *bucket_of(address) };
	*bucket_of(address) = block;
	sim_live_blocks++;
	return address;
}

/* Returns its size. */
static size_t forget(const void *address)
{
	for (struct block **at = bucket_of(address); *at; at = &(*at)->next) {
		struct block *block = *at;

		if (block->at != address)
			continue;
		*at = block->next;
		block->next = spare;
		spare = block;
		sim_live_blocks--;
		return block->size;
	}
	return 0;
}

void sim_memory_report(void)
{
	int shown = 0;

	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct block *b = buckets[i]; b && shown < 20; b = b->next, shown++)
			fprintf(stderr, "  leaked: %zu bytes, allocated at %p (addr2line -f -e)\n",
				b->size, b->from);
}

static bool fails(size_t size, void *from)
{
	int self = node_self();
	struct node *node = self >= 0 ? node_of(self) : NULL;
	bool nth;

	if (!node)
		return false;
	nth = ++node->allocations == node->failing_allocation ||
	      (size && size == node->failing_size);
	if (!nth && (node->memory_until <= sim_time || !sim_options.malloc_fails ||
		     (int)sim_draw_world(100000) >= sim_options.malloc_fails))
		return false;
	sim_counts.failed_allocations++;
	sim_trace("# no memory for %p", from);
	errno = ENOMEM;
	return true;
}

void *sim_malloc(size_t size)
{
	void *from = __builtin_return_address(0);

	return fails(size, from) ? NULL : note(malloc(size), size, from);
}

void *sim_calloc(size_t count, size_t size)
{
	void *from = __builtin_return_address(0);

	return fails(count * size, from) ? NULL : note(calloc(count, size), count * size, from);
}

void *sim_aligned_alloc(size_t align, size_t size)
{
	void *from = __builtin_return_address(0);

	return fails(size, from) ? NULL : note(aligned_alloc(align, size), size, from);
}

void *sim_realloc(void *old, size_t size)
{
	void *from = __builtin_return_address(0), *grown;

	if (fails(size, from))
		return NULL;
	if (old)
		forget(old);
	grown = realloc(old, size);
	return note(grown, size, from);
}

char *sim_strdup(const char *text)
{
	void *from = __builtin_return_address(0);

	return fails(strlen(text) + 1, from) ? NULL : note(strdup(text), strlen(text) + 1, from);
}

void sim_free(void *address)
{
	if (!address)
		return;
	/* Pointers in it lead nowhere from now on, for who uses it nevertheless. */
	memset(address, 0xdb, forget(address));
	free(address);
}

/* Jansson's parser aborts where it gets no memory. */
static void *json_malloc(size_t size)
{
	return note(malloc(size), size, __builtin_return_address(0));
}

void sim_json_setup(void)
{
	json_object_seed(1); /* not the real world's */
	json_set_alloc_funcs(json_malloc, sim_free);
}
