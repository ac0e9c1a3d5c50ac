/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for Mooncake's transfer engine: link it with libtransfer_engine.so, either Wherry's or
 * Mooncake's. One process offers memory, another one writes into it and notifies it.
 *
 *   $ mooncake offer
 *   127.0.0.1:40123 0x7f5c0a000010
 *   $ mooncake write 127.0.0.1:40123 0x7f5c0a000010 "across the river"
 *   0 127.0.0.1:40123 by Wherry's routes ...
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <transfer_engine_c.h>

enum { LENGTH = 4096 };

static char memory[LENGTH];

static _Noreturn void die(const char *what)
{
	/* Only Wherry's library has this function; Mooncake's writes errors to its log. */
	fprintf(stderr, "mooncake: %s: %s\n", what, wherryErrorText());
	exit(1);
}

static void pause_shortly(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

static void offer(transfer_engine_t engine)
{
	notify_msg_t *notes = NULL;
	char name[256];
	int count = 0;

	if (getLocalIpAndPort(engine, name, sizeof(name)))
		die("getLocalIpAndPort");
	printf("%s 0x%" PRIxPTR "\n", name, (uintptr_t)memory);
	fflush(stdout);
	while (!count) {
		pause_shortly();
		notes = getNotifsFromEngine(engine, &count);
	}
	printf("%s says %s: %s\n", notes[0].name, notes[0].msg, memory);
	freeNotifsMsgBuf(notes, count);
}

static void deliver(transfer_engine_t engine, const char *name, const char *address,
		    const char *text)
{
	static char who[] = "the writer", what[] = "it is there";
	struct transfer_request request = { .opcode = OPCODE_WRITE,
					    .source = memory,
					    .length = LENGTH };
	struct transfer_status status = { .status = STATUS_WAITING };
	notify_msg_t note = { .name = who, .msg = what };
	batch_id_t batch = allocateBatchID(engine, 1);
	char links[4096];

	snprintf(memory, sizeof(memory), "%s", text);
	request.target_id = openSegment(engine, name);
	request.target_offset = strtoull(address, NULL, 0);
	if (request.target_id < 0)
		die(name);
	if (submitTransferWithNotify(engine, batch, &request, 1, note))
		die("submitTransferWithNotify");
	while (status.status == STATUS_WAITING) {
		if (getTransferStatus(engine, batch, 0, &status))
			die("getTransferStatus");
		pause_shortly();
	}
	if (status.status != STATUS_COMPLETED)
		die("the transfer");
	if (freeBatchID(engine, batch) || showLinks(engine, links, sizeof(links), 0))
		die("freeBatchID");
	printf("%s", links);
}

int main(int argc, char **argv)
{
	transfer_engine_t engine;

	if (argc < 2 || (argc != 5 && strcmp(argv[1], "offer") != 0)) {
		fprintf(stderr, "usage: mooncake offer | mooncake write NAME ADDRESS TEXT\n");
		return 64;
	}
	engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
	if (!engine)
		die("createTransferEngine");
	if (registerLocalMemory(engine, memory, LENGTH, "cpu:0", 1))
		die("registerLocalMemory");
	if (argc == 5)
		deliver(engine, argv[2], argv[3], argv[4]);
	else
		offer(engine);
	if (unregisterLocalMemory(engine, memory))
		die("unregisterLocalMemory");
	destroyTransferEngine(engine);
	return 0;
}
