/* SPDX-License-Identifier: Apache-2.0 */
#include "compat/nixl/lists.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "compat/nixl/internal.h"
#include "util/hash.h"

/* A length that occurs less often is moved by single transfers. */
#define FEW 8
/* Lengths are divided if that makes no more than this many blocks of each. */
#define DIVIDED_MAX 4
/* Rounds of looking for a length. What is left then is moved by single transfers. */
#define ROUNDS 16

/* The pieces between two regions. */
struct group {
	struct wh_hash_node node;
	struct wh_nixl_pair pair;
	uint64_t *local, *remote, *length; /* offsets, and bytes */
	size_t count, room;
	size_t end; /* of the pieces, and of the blocks behind them that came from dividing some */
	bool uniform; /* all of length[0] */
};

struct wh_nixl_sorter {
	struct wh_hash by_pair;
	struct group *groups;
	size_t group_count, group_room;
	struct wh_nixl_pair *pairs;
	struct wh_nixl_blocks *blocks;
	size_t block_count, block_room;
	struct wh_transfer *singles;
	size_t single_count, single_room;
	uint32_t op;
};

/* Make room for one more element. */
static bool array_grow(void *array, size_t count, size_t *room, size_t size)
{
	void **elements = array;
	size_t wanted = *room ? *room * 2 : 8;
	void *grown;

	if (count < *room)
		return true;
	grown = reallocarray(*elements, wanted, size);
	if (!grown)
		return false;
	*elements = grown;
	*room = wanted;
	return true;
}

/* ---- by regions
 * ---------------------------------------------------------------------------------- */

static bool group_reserve(struct group *group, size_t room)
{
	uint64_t **lists[] = { &group->local, &group->remote, &group->length };

	for (int i = 0; i < 3; i++) {
		uint64_t *grown = reallocarray(*lists[i], room, sizeof(**lists[i]));

		if (!grown)
			return false;
		*lists[i] = grown;
	}
	group->room = room;
	return true;
}

static uint64_t pair_key(const struct wh_nixl_pair *pair)
{
	return (uintptr_t)pair->local * UINT64_C(0x9e3779b97f4a7c15) ^ (uintptr_t)pair->remote;
}

/* The group of a pair; a new one has room for `room` pieces. NULL: no memory. */
static struct group *sorter_group(struct wh_nixl_sorter *sorter, const struct wh_nixl_pair *pair,
				  size_t room)
{
	uint64_t key = pair_key(pair);
	struct wh_hash_node *node = wh_hash_find(&sorter->by_pair, key);
	struct group *former = sorter->groups, *group;

	for (; node && node->key == key; node = node->next) {
		group = wh_container(node, struct group, node);
		if (group->pair.local == pair->local && group->pair.remote == pair->remote)
			return group;
	}
	if (!array_grow(&sorter->groups, sorter->group_count, &sorter->group_room, sizeof(*group)))
		return NULL;
	if (sorter->groups != former) { /* its nodes have moved */
		free(sorter->by_pair.buckets);
		memset(&sorter->by_pair, 0, sizeof(sorter->by_pair));
		for (size_t i = 0; i < sorter->group_count; i++)
			if (wh_hash_insert(&sorter->by_pair, pair_key(&sorter->groups[i].pair),
					   &sorter->groups[i].node))
				return NULL;
	}
	group = &sorter->groups[sorter->group_count];
	memset(group, 0, sizeof(*group));
	group->pair = *pair;
	group->uniform = true;
	sorter->group_count++; /* freed with the sorter from here on */
	if (!group_reserve(group, room) || wh_hash_insert(&sorter->by_pair, key, &group->node))
		return NULL;
	return group;
}

static struct wh_nixl_memory *memory_of(const struct wh_nixl_list *list, size_t i)
{
	struct wh_nixl_memory *memory = NULL;

	if (list->descriptors[i].object)
		memcpy(&memory, list->descriptors[i].object + list->memory_offset, sizeof(memory));
	return memory;
}

static int sort_by_pair(struct wh_nixl_sorter *sorter, const struct wh_nixl_list *local,
			const struct wh_nixl_list *remote, size_t *wrong)
{
	const char *local_object = NULL, *remote_object = NULL;
	struct group *group = NULL;

	for (size_t i = 0; i < local->count; i++) {
		const struct wh_nixl_descriptor *here = &local->descriptors[i];
		const struct wh_nixl_descriptor *there = &remote->descriptors[i];

		if (!group || here->object != local_object || there->object != remote_object) {
			struct wh_nixl_pair pair = { memory_of(local, i), memory_of(remote, i) };

			*wrong = i;
			if (!pair.local || !pair.local->region || !pair.remote ||
			    !pair.remote->peer)
				return -EINVAL;
			/* The first may well be the only one. */
			group = sorter_group(sorter, &pair, group ? 64 : local->count);
			if (!group)
				return -ENOMEM;
			local_object = here->object;
			remote_object = there->object;
		}
		if (here->length != there->length) {
			*wrong = i;
			return -EINVAL;
		}
		if (!here->length)
			continue;
		if (group->count == group->room && !group_reserve(group, group->room * 2))
			return -ENOMEM;
		group->local[group->count] = here->address - group->pair.local->address;
		group->remote[group->count] = there->address - group->pair.remote->address;
		group->length[group->count] = here->length;
		group->uniform &= here->length == group->length[0];
		group->count++;
	}
	return 0;
}

/* ---- by lengths
 * ---------------------------------------------------------------------------------- */

static bool same_blocks(const struct wh_nixl_blocks *a, const struct wh_nixl_blocks *b)
{
	size_t bytes = a->count * sizeof(uint64_t);

	return a->length == b->length && a->count == b->count &&
	       !memcmp(a->local_offsets, b->local_offsets, bytes) &&
	       !memcmp(a->remote_offsets, b->remote_offsets, bytes);
}

/* Add blocks of a pair of regions: as one more base of the last ones, if they are at the same
 * places. The lists belong to a group. */
static int sorter_add_blocks(struct wh_nixl_sorter *sorter, const struct wh_nixl_pair *pair,
			     const struct wh_nixl_blocks *blocks)
{
	struct wh_base base = { .local = pair->local->region, .remote = pair->remote->id };
	size_t count = sorter->block_count;
	struct wh_nixl_blocks *last = count ? &sorter->blocks[count - 1] : NULL;
	struct wh_base *grown;

	if (!last || !same_blocks(last, blocks)) {
		if (!array_grow(&sorter->blocks, sorter->block_count, &sorter->block_room,
				sizeof(*sorter->blocks)))
			return -ENOMEM;
		last = &sorter->blocks[sorter->block_count++];
		*last = *blocks;
	}
	grown = reallocarray(last->bases, last->base_count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	last->bases = grown;
	last->bases[last->base_count++] = base;
	return 0;
}

static int sorter_add_single(struct wh_nixl_sorter *sorter, const struct group *group, size_t i)
{
	if (!array_grow(&sorter->singles, sorter->single_count, &sorter->single_room,
			sizeof(*sorter->singles)))
		return -ENOMEM;
	sorter->singles[sorter->single_count++] = (struct wh_transfer){
		.local = group->pair.local->region,
		.local_offset = group->local[i],
		.remote = group->pair.remote->id,
		.remote_offset = group->remote[i],
		.length = group->length[i],
		.op = sorter->op,
	};
	return 0;
}

/* How the pieces from `begin` on are taken: those of the shortest length, and of its multiples if
 * that does not make too many blocks. */
struct choice {
	uint64_t length;
	bool divides;
	size_t pieces, blocks;
};

static void choose(const struct group *group, size_t begin, struct choice *out)
{
	size_t equal = 0, multiples = 0;
	uint64_t blocks = 0, length = UINT64_MAX;

	for (size_t i = begin; i < group->count; i++)
		length = group->length[i] < length ? group->length[i] : length;
	for (size_t i = begin; i < group->count; i++) {
		equal += group->length[i] == length;
		if (!(group->length[i] % length)) {
			multiples++;
			blocks += group->length[i] / length;
		}
	}
	out->length = length;
	out->divides = multiples > equal && blocks <= DIVIDED_MAX * multiples;
	out->pieces = out->divides ? multiples : equal;
	out->blocks = out->divides ? blocks : equal;
}

static bool chosen(const struct choice *choice, uint64_t length)
{
	return choice->divides ? !(length % choice->length) : length == choice->length;
}

/* Move the chosen pieces to the front, from `begin` on, in their order; the others follow. */
static int group_partition(struct group *group, size_t begin, const struct choice *choice)
{
	size_t count = group->count - begin;
	uint64_t *lists[] = { group->local, group->remote, group->length };
	uint64_t *sorted = reallocarray(NULL, count, sizeof(*sorted));
	bool *taken = malloc(count);

	if (!sorted || !taken) {
		free(sorted);
		free(taken);
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++)
		taken[i] = chosen(choice, group->length[begin + i]);
	for (int list = 0; list < 3; list++) {
		size_t front = 0, rest = choice->pieces;

		for (size_t i = 0; i < count; i++)
			sorted[taken[i] ? front++ : rest++] = lists[list][begin + i];
		memcpy(lists[list] + begin, sorted, count * sizeof(*sorted));
	}
	free(sorted);
	free(taken);
	return 0;
}

/* Make the blocks of the chosen pieces, which begin at `begin`. If they are divided, the blocks
 * stand behind what the group has, where there is room for them. */
static int sorter_take(struct wh_nixl_sorter *sorter, struct group *group, size_t begin,
		       const struct choice *choice)
{
	struct wh_nixl_blocks blocks = { .length = choice->length, .count = choice->blocks };
	size_t at = begin;

	if (choice->divides) {
		at = group->end;
		for (size_t i = begin; i < begin + choice->pieces; i++)
			for (uint64_t done = 0; done < group->length[i]; done += choice->length) {
				group->local[group->end] = group->local[i] + done;
				group->remote[group->end++] = group->remote[i] + done;
			}
	}
	blocks.local_offsets = group->local + at;
	blocks.remote_offsets = group->remote + at;
	return sorter_add_blocks(sorter, &group->pair, &blocks);
}

static int sort_by_length(struct wh_nixl_sorter *sorter, struct group *group)
{
	size_t begin = 0, end;
	int error = 0;

	if (!group->count)
		return 0;
	if (group->uniform) {
		struct choice all = { .length = group->length[0],
				      .pieces = group->count,
				      .blocks = group->count };

		return sorter_take(sorter, group, 0, &all);
	}
	for (int round = 0; begin < group->count && round < ROUNDS && !error; round++) {
		struct choice choice;

		choose(group, begin, &choice);
		error = group_partition(group, begin, &choice);
		end = begin + choice.pieces;
		if (!error && choice.pieces < FEW)
			for (size_t i = begin; i < end && !error; i++)
				error = sorter_add_single(sorter, group, i);
		else if (!error)
			error = sorter_take(sorter, group, begin, &choice);
		begin = end;
	}
	for (; begin < group->count && !error; begin++)
		error = sorter_add_single(sorter, group, begin);
	return error;
}

/* ---- lists
 * ----------------------------------------------------------------------------------------- */

static void sorter_free(struct wh_nixl_sorter *sorter)
{
	for (size_t i = 0; i < sorter->group_count; i++) {
		free(sorter->groups[i].local);
		free(sorter->groups[i].remote);
		free(sorter->groups[i].length);
	}
	for (size_t i = 0; i < sorter->block_count; i++)
		free(sorter->blocks[i].bases);
	free(sorter->by_pair.buckets);
	free(sorter->groups);
	free(sorter->pairs);
	free(sorter->blocks);
	free(sorter->singles);
	free(sorter);
}

int wh_nixl_lists_sort(const struct wh_nixl_list *local, const struct wh_nixl_list *remote,
		       bool write, struct wh_nixl_lists *out, size_t *wrong)
{
	struct wh_nixl_sorter *sorter;
	int error;

	*wrong = local->count < remote->count ? local->count : remote->count;
	if (local->count != remote->count)
		return -EINVAL;
	sorter = calloc(1, sizeof(*sorter));
	if (!sorter)
		return -ENOMEM;
	sorter->op = write ? WH_WRITE : WH_READ;
	error = sort_by_pair(sorter, local, remote, wrong);
	if (!error) {
		sorter->pairs = calloc(sorter->group_count + 1, sizeof(*sorter->pairs));
		error = sorter->pairs ? 0 : -ENOMEM;
	}
	for (size_t i = 0; i < sorter->group_count && !error; i++) {
		struct group *group = &sorter->groups[i];

		sorter->pairs[i] = group->pair;
		group->end = group->count;
		/* Room for divided pieces: blocks point into the lists, which must not move. */
		if (!group->uniform &&
		    !group_reserve(group, group->count * (1 + (size_t)DIVIDED_MAX) +
						  (size_t)ROUNDS * DIVIDED_MAX))
			error = -ENOMEM;
		else
			error = sort_by_length(sorter, group);
	}
	if (error) {
		sorter_free(sorter);
		return error;
	}
	*out = (struct wh_nixl_lists){
		.blocks = sorter->blocks,
		.block_count = sorter->block_count,
		.singles = sorter->singles,
		.single_count = sorter->single_count,
		.pairs = sorter->pairs,
		.pair_count = sorter->group_count,
		.sorter = sorter,
	};
	return 0;
}

void wh_nixl_lists_free(struct wh_nixl_lists *lists)
{
	sorter_free(lists->sorter);
	memset(lists, 0, sizeof(*lists));
}
