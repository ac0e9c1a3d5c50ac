/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For bench/mooncake: a program on Mooncake's C interface, linked with Wherry's libtransfer_engine.
 *
 *   mooncake-engine serve LENGTH
 *       registers memory, prints the engine's name and the address, and ends when its standard
 *       input ends
 *   mooncake-engine client SEGMENT ADDRESS LENGTH
 *       executes the commands on its standard input, one a line:
 *   write|read SIZE COUNT SECONDS
 *       moves batches of COUNT blocks; prints the bytes and the seconds
 *   verify
 *       writes all of the memory, reads it back, prints "good" or "bad"
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <transfer_engine_c.h>

struct client {
	transfer_engine_t engine;
	segment_id_t segment;
	unsigned char *memory;
	uint64_t remote;
	size_t length;
};

static _Noreturn void engine_die(const char *what)
{
	fprintf(stderr, "mooncake-engine: %s: %s\n", what, wherryErrorText());
	exit(1);
}

static double clock_seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static transfer_engine_t engine_open(size_t length, unsigned char **memory)
{
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);

	*memory = aligned_alloc(4096, length);
	if (!*memory)
		engine_die("no memory");
	memset(*memory, 1, length);
	if (!engine || registerLocalMemory(engine, *memory, length, "cpu:0", 1))
		engine_die("it does not start");
	return engine;
}

/* Wait by polling, as Mooncake's own programs do. */
static void client_wait(const struct client *client, batch_id_t batch, size_t count)
{
	struct transfer_status status;

	for (size_t i = 0; i < count; i++)
		do {
			if (getTransferStatus(client->engine, batch, i, &status))
				engine_die("getTransferStatus");
			if (status.status != STATUS_COMPLETED && status.status != STATUS_WAITING &&
			    status.status != STATUS_PENDING)
				engine_die("a transfer");
		} while (status.status != STATUS_COMPLETED);
}

static void client_move(const struct client *client, int opcode, struct transfer_request *requests,
			size_t size, size_t count, size_t first)
{
	batch_id_t batch = allocateBatchID(client->engine, count);

	for (size_t i = 0; i < count; i++) {
		size_t at = (first + i) % (client->length / size) * size;

		requests[i] = (struct transfer_request){
			.opcode = opcode,
			.source = client->memory + at,
			.target_id = client->segment,
			.target_offset = client->remote + at,
			.length = size,
		};
	}
	if (batch == INVALID_BATCH || submitTransfer(client->engine, batch, requests, count))
		engine_die("submitTransfer");
	client_wait(client, batch, count);
	if (freeBatchID(client->engine, batch))
		engine_die("freeBatchID");
}

static void client_measure(const struct client *client, int opcode, size_t size, size_t count,
			   double seconds)
{
	struct transfer_request *requests = calloc(count, sizeof(*requests));
	double begun = clock_seconds(), passed;
	size_t batches = 0;

	if (!requests)
		engine_die("no memory");
	do {
		client_move(client, opcode, requests, size, count, batches * count);
		batches++;
		passed = clock_seconds() - begun;
	} while (passed < seconds);
	printf("%zu %.6f\n", batches * count * size, passed);
	free(requests);
}

static void client_verify(const struct client *client)
{
	unsigned char *kept = malloc(client->length);
	struct transfer_request request;
	uint64_t seed = 99;

	if (!kept)
		engine_die("no memory");
	for (size_t i = 0; i < client->length; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
		kept[i] = client->memory[i] = (unsigned char)(seed >> 56);
	}
	client_move(client, OPCODE_WRITE, &request, client->length, 1, 0);
	memset(client->memory, 0, client->length);
	client_move(client, OPCODE_READ, &request, client->length, 1, 0);
	puts(memcmp(kept, client->memory, client->length) ? "bad" : "good");
	free(kept);
}

static void client_obey(const struct client *client)
{
	char line[256], verb[16];
	double seconds;
	size_t size, count;

	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%15s %zu %zu %lf", verb, &size, &count, &seconds) == 4 && size &&
		    count && size <= client->length)
			client_measure(client, strcmp(verb, "read") ? OPCODE_WRITE : OPCODE_READ,
				       size, count, seconds);
		else
			client_verify(client);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	int serve = argc == 3 && !strcmp(argv[1], "serve");
	struct client client = { .length = 0 };
	char name[256];

	if (!serve && (argc != 5 || strcmp(argv[1], "client") != 0))
		return fprintf(stderr, "usage: mooncake-engine serve LENGTH | client SEGMENT "
				       "ADDRESS LENGTH\n"),
		       64;
	client.length = strtoull(argv[argc - 1], NULL, 0);
	client.engine = engine_open(client.length, &client.memory);
	if (serve) {
		if (getLocalIpAndPort(client.engine, name, sizeof(name)))
			engine_die("getLocalIpAndPort");
		printf("%s %" PRIu64 "\n", name, (uint64_t)(uintptr_t)client.memory);
		fflush(stdout);
		while (getchar() != EOF)
			;
	} else {
		client.remote = strtoull(argv[3], NULL, 0);
		client.segment = openSegment(client.engine, argv[2]);
		if (client.segment < 0)
			engine_die("openSegment");
		client_obey(&client);
	}
	unregisterLocalMemory(client.engine, client.memory);
	destroyTransferEngine(client.engine);
	free(client.memory);
	return 0;
}
