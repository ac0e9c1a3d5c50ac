/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator of bench/python/peers.py in C: what Python's figures are compared with.
 *
 * Reads commands from stdin, one JSON object a line, and answers each with one on stdout; ends with
 * stdin. peers_worker.py has the same commands:
 *
 *   {"do": "machine"}                the machine, as all results have it
 *   {"do": "connect", "url": URL}
 *   {"do": "row", ...}               prepare a transfer: op, count, block, memory, name (a region
 * of the peer), require, indices, source (files)
 *   {"do": "clear"}                  the target of a read
 *   {"do": "go", "loops": N}         transfer N times, for 0.7 s at most: "us" of each;
 *                                    "post_us": of submitting each
 *   {"do": "check"}                  is every byte of the target right?
 *   {"do": "explain"}                the routes
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <wherry/wherry.h>

#include "../timing.h"
#include "bench/machine.h"

#define FOREVER INT64_MAX
#define LONGEST 7e8 /* ns of a "go" */

/* Memory of one kind, registered. */
struct memory {
	char kind[16];
	unsigned char *bytes; /* of a GPU if gpu */
	size_t length;
	bool gpu;
	struct wh_region *region;
};

static struct {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct memory memories[16];
	struct memory *memory; /* of this row */
	bool read;
	size_t length; /* of this row, bytes */
	unsigned char *expected, *seen;
	struct wh_batch *batch;
} peer;

static void die(const char *what)
{
	timing_die("peer", what);
}

/* ---- GPU memory, by the driver alone --------------------------------------------------------- */

static int (*copy_from)(void *, unsigned long long, size_t);
static int (*copy_to)(unsigned long long, const void *, size_t);

static void *driver_call(void *driver, const char *name)
{
	void *call = dlsym(driver, name);

	if (!call)
		die(name);
	return call;
}

static void driver_open(void)
{
	int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;

	if (!driver)
		die("libcuda.so.1");
	*(void **)&init = driver_call(driver, "cuInit");
	*(void **)&retain = driver_call(driver, "cuDevicePrimaryCtxRetain");
	*(void **)&set = driver_call(driver, "cuCtxSetCurrent");
	*(void **)&copy_from = driver_call(driver, "cuMemcpyDtoH_v2");
	*(void **)&copy_to = driver_call(driver, "cuMemcpyHtoD_v2");
	if (init(0) || retain(&context, 0) || set(context))
		die("cuInit");
}

static void memory_put(const struct memory *to, const void *from, size_t length)
{
	if (!to->gpu)
		memcpy(to->bytes, from, length);
	else if (copy_to((uintptr_t)to->bytes, from, length))
		die("cuMemcpyHtoD");
}

static const unsigned char *memory_get(const struct memory *from, size_t length)
{
	if (!from->gpu)
		return from->bytes;
	if (copy_from(peer.seen, (uintptr_t)from->bytes, length))
		die("cuMemcpyDtoH");
	return peer.seen;
}

/* ---- commands -------------------------------------------------------------------------------- */

static struct memory *memory_of(const char *kind, size_t length)
{
	struct wh_memory_options options = { .size = sizeof(options) };
	struct memory *memory = peer.memories;
	void *bytes;

	for (; memory->length; memory++)
		if (!strcmp(memory->kind, kind) && memory->length == length)
			return memory;
	if (memory == &peer.memories[15])
		die("too many memories");
	snprintf(memory->kind, sizeof(memory->kind), "%s", kind);
	if (!strcmp(kind, "private")) {
		bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0);
		if (bytes == MAP_FAILED)
			die("mmap");
	} else {
		memory->gpu = !strcmp(kind, "gpu");
		options.kind = memory->gpu             ? WH_MEMORY_DEVICE :
			       !strcmp(kind, "pinned") ? WH_MEMORY_PINNED :
							 WH_MEMORY_SHARED;
		options.location = memory->gpu ? "cuda:0" : NULL;
		if (memory->gpu && !copy_to)
			driver_open();
		if (wh_memory_alloc(peer.engine, length, &options, &bytes))
			die("wh_memory_alloc");
	}
	memory->bytes = bytes;
	memory->length = length;
	if (wh_region_register(peer.engine, bytes, length, NULL, &memory->region))
		die("wh_region_register");
	return memory;
}

static void *file_read(const char *path, size_t length)
{
	void *bytes = malloc(length);
	FILE *file = fopen(path, "rb");

	if (!bytes || !file || fread(bytes, 1, length, file) != length)
		die(path);
	fclose(file);
	return bytes;
}

static const char *text_of(const json_t *command, const char *key)
{
	const char *text = json_string_value(json_object_get(command, key));

	return text && *text ? text : NULL;
}

/* The batch of this row: one range, or `count` blocks of which all indices differ. */
static void batch_make(const char *require, uint64_t remote, size_t count, size_t block,
		       const int32_t *theirs, const int32_t *ours)
{
	struct wh_batch_options options = { .size = sizeof(options), .require = require };
	uint32_t op = peer.read ? WH_READ : WH_WRITE;
	struct wh_base base = { .local = peer.memory->region, .remote = remote };
	struct wh_transfer whole = {
		.local = base.local, .remote = remote, .length = block, .op = op
	};
	struct wh_blocks_desc desc = {
		.size = sizeof(desc),
		.op = op,
		.block_length = block,
		.count = count,
		.bases = &base,
		.base_count = 1,
		.local_indices = ours,
		.local_stride = block,
		.remote_indices = theirs,
		.remote_stride = block,
	};
	struct wh_blocks *blocks;

	if (peer.batch)
		wh_batch_free(peer.batch);
	if (wh_peer_prepare(peer.peer, &base.local, 1, &remote, 1, 30000000000) ||
	    wh_batch_new(peer.peer, &options, &peer.batch))
		die("wh_batch_new");
	if (count == 1) {
		if (wh_batch_add(peer.batch, &whole, 1))
			die("wh_batch_add");
		return;
	}
	if (wh_blocks_new(peer.peer, &desc, &blocks) || wh_batch_add_blocks(peer.batch, blocks) ||
	    wh_blocks_free(blocks))
		die("wh_blocks_new");
}

static json_t *row(const json_t *command)
{
	size_t count = json_integer_value(json_object_get(command, "count"));
	size_t block = json_integer_value(json_object_get(command, "block"));
	unsigned char *source = file_read(text_of(command, "source"), count * block);
	/* Of the source's blocks, then of the target's. */
	int32_t *from = file_read(text_of(command, "indices"), 2 * count * sizeof(*from));
	const int32_t *to = from + count;
	struct wh_remote remote;

	peer.read = !strcmp(text_of(command, "op"), "read");
	peer.length = count * block;
	peer.memory = memory_of(text_of(command, "memory"), peer.length);
	peer.expected = realloc(peer.expected, peer.length);
	peer.seen = realloc(peer.seen, peer.length);
	if (!peer.expected || !peer.seen)
		die("memory");
	for (size_t i = 0; i < count; i++)
		memcpy(peer.expected + to[i] * block, source + from[i] * block, block);
	if (!peer.read)
		memory_put(peer.memory, source, peer.length);
	if (wh_peer_find(peer.peer, text_of(command, "name"), 5000000000, &remote))
		die("wh_peer_find");
	batch_make(text_of(command, "require"), remote.id, count, block, peer.read ? from : to,
		   peer.read ? to : from);
	free(source);
	free(from);
	return json_object();
}

static json_t *clear(void)
{
	if (!peer.memory->gpu) {
		memset(peer.memory->bytes, 0, peer.length);
		return json_object();
	}
	memset(peer.seen, 0, peer.length);
	memory_put(peer.memory, peer.seen, peer.length);
	return json_object();
}

static json_t *go(const json_t *command)
{
	json_int_t loops = json_integer_value(json_object_get(command, "loops"));
	json_t *taken = json_array(), *posted = json_array();
	double first = timing_now();

	for (json_int_t i = 0; i < loops && timing_now() - first < LONGEST; i++) {
		double begun = timing_now(), submitted;

		if (wh_batch_submit(peer.batch))
			die("submit");
		submitted = timing_now();
		if (wh_batch_wait_for(peer.batch, FOREVER) || wh_batch_status(peer.batch))
			die("wait");
		json_array_append_new(taken, json_real((timing_now() - begun) / 1000));
		json_array_append_new(posted, json_real((submitted - begun) / 1000));
	}
	return json_pack("{s:o,s:o}", "us", taken, "post_us", posted);
}

static json_t *check(void)
{
	return json_pack("{s:b}", "good",
			 !memcmp(memory_get(peer.memory, peer.length), peer.expected, peer.length));
}

static json_t *explain(void)
{
	char text[4096];

	if (wh_batch_explain(peer.batch, text, sizeof(text)) < 0)
		die("wh_batch_explain");
	return json_pack("{s:s}", "text", text);
}

static json_t *connect_to(const json_t *command)
{
	struct wh_peer_options options = { .size = sizeof(options), .timeout = 5000000000 };

	if (wh_peer_open(peer.engine, text_of(command, "url"), &options, &peer.peer))
		die("wh_peer_open");
	return json_object();
}

static json_t *answer(const json_t *command)
{
	const char *what = text_of(command, "do");

	if (!what)
		die("a command without do");
	if (!strcmp(what, "machine"))
		return machine_describe();
	if (!strcmp(what, "connect"))
		return connect_to(command);
	if (!strcmp(what, "row"))
		return row(command);
	if (!strcmp(what, "clear"))
		return clear();
	if (!strcmp(what, "go"))
		return go(command);
	if (!strcmp(what, "check"))
		return check();
	if (!strcmp(what, "explain"))
		return explain();
	die(what);
	return NULL;
}

int main(void)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	char line[4096];

	if (wh_engine_open(&options, &peer.engine))
		die("wh_engine_open");
	while (fgets(line, sizeof(line), stdin)) {
		json_t *command = json_loads(line, 0, NULL), *said;
		char *text;

		if (!command)
			die("not JSON");
		said = answer(command);
		text = json_dumps(said, JSON_COMPACT);
		if (!text)
			die("memory");
		puts(text);
		fflush(stdout);
		free(text);
		json_decref(said);
		json_decref(command);
	}
	free(peer.expected);
	free(peer.seen);
	return 0; /* the end of the process lets go of the rest */
}
