/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off: the table */
/*
 * A program as Mooncake's users write them: it includes Mooncake's header only, by Mooncake's name,
 * and nothing of Wherry's.
 *
 *   peer serve METADATA NAME PLACE
 *           Register 4 MiB and print its name, their address and their length; then read commands
 *           from standard input, and answer each with a line:
 *             sum     the checksum of all bytes
 *             notes   the notifications that have arrived
 *             more    register more memory
 *             less    unregister it
 *   peer client METADATA NAME PLACE SEGMENT ADDRESS LENGTH ROUTE
 *           Write and read there in many ways, and check that the bytes went by ROUTE.
 *   peer sum METADATA NAME PLACE SEGMENT ADDRESS LENGTH
 *           Read all bytes and print their checksum.
 *
 * PLACE is "host", or "gpu" for memory of the driver in $TEST_CUDA.
 */
/* clang-format on */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <transfer_engine_c.h>

#define LENGTH ((size_t)4 << 20)
#define BLOCKS 256
#define PATIENCE 60 /* s */

static int failed;

static _Noreturn void die(const char *what)
{
	fprintf(stderr, "peer: %s: %s\n", what, wherryErrorText());
	exit(1);
}

static void verdict(const char *name, int good)
{
	printf("[%s] %s\n", good ? "       OK " : "  FAILED  ", name);
	fflush(stdout);
	if (!good) {
		fprintf(stderr, "%s: %s\n", name, wherryErrorText());
		failed = 1;
	}
}

/* ---- memory -------------------------------------------------------------------------------- */

/* Of CUDA's driver, what is wanted here. */
static struct {
	void *library;
	int (*allocate)(unsigned long long *address, size_t length);
	int (*release)(unsigned long long address);
	int (*to_device)(unsigned long long to, const void *from, size_t length);
	int (*to_host)(void *to, unsigned long long from, size_t length);
} cuda;

static void *cuda_function(const char *name)
{
	void *found = dlsym(cuda.library, name);

	if (!found)
		die(name);
	return found;
}

static void open_cuda(void)
{
	const char *path = getenv("TEST_CUDA");
	int (*initialise)(unsigned int flags);
	int (*retain)(void **context, int device);
	int (*use)(void *context);
	void *context;

	cuda.library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW);
	if (!cuda.library)
		die(dlerror());
	/* ISO C has no way from a data pointer to a function's. */
	*(void **)&initialise = cuda_function("cuInit");
	*(void **)&retain = cuda_function("cuDevicePrimaryCtxRetain");
	*(void **)&use = cuda_function("cuCtxSetCurrent");
	*(void **)&cuda.allocate = cuda_function("cuMemAlloc_v2");
	*(void **)&cuda.release = cuda_function("cuMemFree_v2");
	*(void **)&cuda.to_device = cuda_function("cuMemcpyHtoD_v2");
	*(void **)&cuda.to_host = cuda_function("cuMemcpyDtoH_v2");
	if (initialise(0) || retain(&context, 0) || use(context))
		die("CUDA");
}

static void *allocate(size_t length)
{
	unsigned long long address = 0;
	void *memory;

	if (cuda.library)
		return cuda.allocate(&address, length) ? NULL : (void *)(uintptr_t)address;
	memory = malloc(length);
	if (memory)
		memset(memory, 0, length);
	return memory;
}

static void release(void *memory)
{
	if (cuda.library)
		cuda.release((uintptr_t)memory);
	else
		free(memory);
}

static void put(void *to, const void *from, size_t length)
{
	if (!cuda.library)
		memcpy(to, from, length);
	else if (cuda.to_device((uintptr_t)to, from, length))
		die("cuMemcpyHtoD");
}

static void get(void *to, const void *from, size_t length)
{
	if (!cuda.library)
		memcpy(to, from, length);
	else if (cuda.to_host(to, (uintptr_t)from, length))
		die("cuMemcpyDtoH");
}

static void fill(unsigned char *bytes, size_t length, uint64_t seed)
{
	for (size_t i = 0; i < length; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		bytes[i] = (unsigned char)(seed >> 56);
	}
}

/* The peer says by another way when it has written; the thread sanitizer cannot know that. */
__attribute__((no_sanitize("thread"))) static uint64_t sum_of(const void *memory, size_t length)
{
	unsigned char *copy = cuda.library ? malloc(length) : NULL;
	const volatile unsigned char *bytes = copy ? copy : memory;
	uint64_t sum = 5381;

	if (copy)
		get(copy, memory, length);
	else if (cuda.library)
		die("no memory");
	for (size_t i = 0; i < length; i++)
		sum = sum * 33 + bytes[i];
	free(copy);
	return sum;
}

/* ---- moving -------------------------------------------------------------------------------- */

struct side {
	transfer_engine_t engine;
	segment_id_t segment;
	unsigned char *memory;
	uint64_t remote, length;
};

/* How all requests of the batch have ended: 0 if they have completed. */
static int wait_all(transfer_engine_t engine, batch_id_t batch, size_t count)
{
	time_t until = time(NULL) + PATIENCE;
	int result = 0;

	for (size_t i = 0; i < count; i++) {
		struct transfer_status status = { STATUS_WAITING, 0 };

		while (status.status == STATUS_WAITING || status.status == STATUS_PENDING) {
			if (getTransferStatus(engine, batch, i, &status) || time(NULL) > until)
				return -1;
		}
		if (status.status != STATUS_COMPLETED)
			result = status.status;
	}
	return result;
}

static int run(const struct side *side, struct transfer_request *requests, size_t count,
	       const notify_msg_t *note)
{
	batch_id_t batch = allocateBatchID(side->engine, count);
	int result;

	if (batch == INVALID_BATCH)
		return -1;
	result = note ? submitTransferWithNotify(side->engine, batch, requests, count, *note) :
			submitTransfer(side->engine, batch, requests, count);
	if (!result)
		result = wait_all(side->engine, batch, count);
	return freeBatchID(side->engine, batch) ? -1 : result;
}

static int move(const struct side *side, int opcode, size_t at, uint64_t remote, size_t length)
{
	struct transfer_request request = {
		.opcode = opcode,
		.source = side->memory + at,
		.target_id = side->segment,
		.target_offset = remote,
		.length = length,
	};

	return run(side, &request, 1, NULL);
}

/* ---- the client's cases -------------------------------------------------------------------- */

static int to_and_back(const struct side *side, size_t length, uint64_t offset)
{
	unsigned char *bytes = malloc(length), *back = malloc(length);
	int good = bytes && back;

	if (good) {
		fill(bytes, length, length + offset);
		memset(back, 0, length);
		put(side->memory, bytes, length);
		good = !move(side, OPCODE_WRITE, 0, side->remote + offset, length);
		put(side->memory, back, length);
		good = good && !move(side, OPCODE_READ, 0, side->remote + offset, length);
		get(back, side->memory, length);
		if (good && memcmp(bytes, back, length)) {
			fprintf(stderr, "wrong bytes\n");
			good = 0;
		}
	}
	free(bytes);
	free(back);
	return good;
}

/* Blocks from places in one order to places in another, and back to where they came from. */
static int blocks(const struct side *side)
{
	struct transfer_request requests[BLOCKS];
	const size_t size = 4096;
	unsigned char *bytes = calloc(BLOCKS, size), *back = calloc(BLOCKS, size);
	int good = bytes && back;

	for (size_t i = 0; i < BLOCKS; i++)
		requests[i] = (struct transfer_request){
			.opcode = OPCODE_WRITE,
			.source = side->memory + i * size,
			.target_id = side->segment,
			.target_offset = side->remote + (i * 7 % BLOCKS) * 2 * size,
			.length = size,
		};
	if (good) {
		fill(bytes, BLOCKS * size, 77);
		put(side->memory, bytes, BLOCKS * size);
		good = !run(side, requests, BLOCKS, NULL);
		put(side->memory, back, BLOCKS * size);
		for (size_t i = 0; i < BLOCKS; i++)
			requests[i].opcode = OPCODE_READ;
		good = good && !run(side, requests, BLOCKS, NULL);
		get(back, side->memory, BLOCKS * size);
		if (good && memcmp(bytes, back, BLOCKS * size)) {
			fprintf(stderr, "wrong bytes\n");
			good = 0;
		}
	}
	free(bytes);
	free(back);
	return good;
}

/* One batch that is filled in three steps; and one of its requests is wrong at the target alone. */
static int steps(const struct side *side)
{
	batch_id_t batch = allocateBatchID(side->engine, 3);
	struct transfer_request request = {
		.opcode = OPCODE_READ,
		.source = side->memory,
		.target_id = side->segment,
		.target_offset = side->remote,
		.length = 65537,
	};
	struct transfer_status status;
	int good;

	good = !submitTransfer(side->engine, batch, &request, 1);
	request.source = side->memory + (1 << 20);
	request.target_offset = side->remote + side->length - 65536;
	good = good && !submitTransfer(side->engine, batch, &request, 1);
	request.source = side->memory + (2 << 20);
	request.target_offset = side->remote;
	good = good && !submitTransfer(side->engine, batch, &request, 1);
	good = good && submitTransfer(side->engine, batch, &request, 1) == 2;
	good = good && wait_all(side->engine, batch, 3) == STATUS_FAILED;
	good = good && !getTransferStatus(side->engine, batch, 1, &status) &&
	       status.status == STATUS_FAILED && !status.transferred_bytes &&
	       strstr(wherryErrorText(), "not in memory that is registered there");
	good = good && !getTransferStatus(side->engine, batch, 2, &status) &&
	       status.status == STATUS_COMPLETED && status.transferred_bytes == 65537;
	return good && !freeBatchID(side->engine, batch) && freeBatchID(side->engine, batch) == 1;
}

static int with_notification(const struct side *side)
{
	static char name[] = "client", first[] = "two \"blocks\"", second[] = "alone";
	struct transfer_request requests[2] = {
		{ .opcode = OPCODE_WRITE,
		  .source = side->memory,
		  .target_id = side->segment,
		  .target_offset = side->remote,
		  .length = 1 << 20 },
		{ .opcode = OPCODE_WRITE,
		  .source = side->memory + (1 << 20),
		  .target_id = side->segment,
		  .target_offset = side->remote + (2 << 20),
		  .length = 1 << 20 },
	};
	notify_msg_t note = { .name = name, .msg = first };

	if (run(side, requests, 2, &note))
		return 0;
	/* Where one of them fails, nothing is said. */
	note.msg = name;
	requests[1].target_offset = 4096;
	if (run(side, requests, 2, &note) != STATUS_FAILED)
		return 0;
	note.msg = second;
	return !genNotifyInEngine(side->engine, (uint64_t)side->segment, note);
}

/* Within this engine. */
static int local(const struct side *side)
{
	unsigned char bytes[1000], back[1000];
	struct side here = *side;

	fill(bytes, sizeof(bytes), 3);
	put(side->memory + 4096, bytes, sizeof(bytes));
	here.segment = LOCAL_SEGMENT;
	if (move(&here, OPCODE_READ, 8192, (uintptr_t)side->memory + 4096, sizeof(bytes)))
		return 0;
	get(back, side->memory + 8192, sizeof(back));
	return !memcmp(bytes, back, sizeof(bytes));
}

static int went_by(const struct side *side, const char *route)
{
	char links[8192], wanted[64];

	snprintf(wanted, sizeof(wanted), "\"transport\":\"%s\"", route);
	if (showLinks(side->engine, links, sizeof(links), 1))
		return 0;
	if (strstr(links, wanted))
		return 1;
	fprintf(stderr, "not by %s: %s\n", route, links);
	return 0;
}

static int do_client(struct side *side, const char *segment, const char *route)
{
	verdict("1 byte", to_and_back(side, 1, 0));
	verdict("4095 bytes at 3", to_and_back(side, 4095, 3));
	verdict("all of it", to_and_back(side, side->length, 0));
	verdict("blocks", blocks(side));
	verdict("in three steps", steps(side));
	verdict("with a notification", with_notification(side));
	verdict("within the engine", local(side));
	verdict(route, went_by(side, route));
	verdict("the same number again",
		openSegment(side->engine, segment) == side->segment &&
			openSegmentNoCache(side->engine, segment) == side->segment);
	verdict("asked again", !syncSegmentCache(side->engine) && to_and_back(side, 4096, 1));
	verdict("closed and used again",
		!closeSegment(side->engine, side->segment) && to_and_back(side, 4096, 2));
	return failed;
}

/* ---- the server's ------------------------------------------------------------------------- */

static void print_notes(transfer_engine_t engine)
{
	notify_msg_t *notes;
	int count = 0;

	notes = getNotifsFromEngine(engine, &count);
	printf("%d", count);
	for (int i = 0; i < count; i++)
		printf(" [%s: %s]", notes[i].name, notes[i].msg);
	printf("\n");
	freeNotifsMsgBuf(notes, count);
}

static int do_serve(transfer_engine_t engine, void *memory)
{
	char line[64], name[256];
	void *more = NULL;

	if (getLocalIpAndPort(engine, name, sizeof(name)))
		die("getLocalIpAndPort");
	printf("%s %" PRIuPTR " %zu\n", name, (uintptr_t)memory, LENGTH);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "sum\n")) {
			printf("%" PRIu64 "\n", sum_of(memory, LENGTH));
		} else if (!strcmp(line, "notes\n")) {
			print_notes(engine);
		} else if (!strcmp(line, "more\n")) {
			buffer_entry_t entry = { .addr = more = allocate(LENGTH),
						 .length = LENGTH };

			if (registerLocalMemoryBatch(engine, &entry, 1, "*"))
				die("more");
			printf("%" PRIuPTR "\n", (uintptr_t)more);
		} else if (!strcmp(line, "less\n")) {
			if (unregisterLocalMemoryBatch(engine, &more, 1))
				die("less");
			release(more);
			printf("done\n");
		}
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct side side = { .engine = NULL };
	const char *verb = argc > 4 ? argv[1] : "";
	int client = !strcmp(verb, "client") && argc == 9, sum = !strcmp(verb, "sum") && argc == 8;
	int code;

	if (!client && !sum && !(!strcmp(verb, "serve") && argc == 5)) {
		fprintf(stderr, "usage: peer serve|client|sum METADATA NAME host|gpu ...\n");
		return 64;
	}
	if (!strcmp(argv[4], "gpu"))
		open_cuda();
	side.engine = createTransferEngine(argv[2], argv[3], "127.0.0.1", 0, 1);
	if (!side.engine)
		die("createTransferEngine");
	side.memory = allocate(LENGTH);
	if (!side.memory || !installTransport(side.engine, "tcp", NULL) ||
	    registerLocalMemory(side.engine, side.memory, LENGTH, cuda.library ? "cuda:0" : "cpu:0",
				1))
		die("registerLocalMemory");
	if (client || sum) {
		side.remote = strtoull(argv[6], NULL, 0);
		side.length = strtoull(argv[7], NULL, 0);
		side.segment = openSegment(side.engine, argv[5]);
		if (side.segment <= 0 || side.length > LENGTH)
			die("openSegment");
	}
	if (sum) {
		if (move(&side, OPCODE_READ, 0, side.remote, side.length))
			die("read");
		printf("%" PRIu64 "\n", sum_of(side.memory, side.length));
		code = 0;
	} else {
		code = client ? do_client(&side, argv[5], argv[8]) :
				do_serve(side.engine, side.memory);
	}
	if (unregisterLocalMemory(side.engine, side.memory))
		die("unregisterLocalMemory");
	destroyTransferEngine(side.engine);
	release(side.memory);
	return code;
}
