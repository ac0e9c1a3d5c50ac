/* SPDX-License-Identifier: Apache-2.0 */
/* wherry spread: a file to the memory of many. */
#ifndef TOOLS_SPREAD_SPREAD_H
#define TOOLS_SPREAD_SPREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <wherry/wherry.h>

#include "command.h"
#include "progress.h"
#include "spread/message.h"
#include "url.h"

enum receiver_state {
	RECEIVER_OPENING,
	RECEIVER_ASKED,
	RECEIVER_WILLING, /* has answered that it would take the file */
	RECEIVER_OFFERED,
	RECEIVER_READY, /* is a member, and receives */
	RECEIVER_DONE, /* has published it */
	RECEIVER_FAILED,
};

struct receiver {
	const char *text; /* as given */
	struct url url;
	enum receiver_state state;
	int error; /* why it failed, negative; with a text */
	uint32_t member; /* of the offer; 0: left out, as it was not there */
	char why[400];
	struct wh_peer *peer;
	struct wh_batch *batches[4]; /* asked, offered, ended, pinged */
	char name[64], region[64];
	char address[96], machine[64], host[64], location[32]; /* for the layouts */
	uint64_t received;
	int64_t moved, lost; /* when bytes came last; since when it is not connected, or 0 */
	int64_t pinged; /* when it was last asked whether it stands still */
	double seconds; /* until it had published the file */
	struct spread_item *from; /* whom it has read from */
	uint32_t from_count;
	struct progress progress;
};

struct spread {
	const struct arguments *arguments;
	const char *path;
	int file;
	void *address; /* the file, mapped */
	uint64_t size, chunk, piece;
	uint64_t link; /* bytes per second, of each host; 0: not said */
	struct timespec changed; /* the file, before it was read */
	bool quiet, json, plan, dry_run, separate;
	struct wh_engine *engine;
	struct wh_queue *queue;
	struct wh_weights *weights;
	int signals, interrupted; /* the descriptor; the signal that came, or 0 */
	uint8_t token[SPREAD_TOKEN];
	struct receiver *receivers;
	uint32_t count;
	struct spread_message offer;
	int code; /* of the first failure */
	uint32_t losses; /* receivers that have failed */
	bool refused; /* somebody was there and does not take the file: nothing moves */
	int64_t started;
	double seconds;
};

/* ---- receivers.c: talking to them --------------------------------------------------------------
 * Each returns 0, or an exit code, after a line on stderr for each receiver that has failed; or a
 * signal has come, and spread->interrupted says so. Who is not there, or does not answer, is left
 * out as long as another one is there; spread->code says so. */

/* Connect to all, and ask them whether they would take the file. */
int receivers_ask(struct spread *spread);

/* Name the members: spread->offer. */
int receivers_list(struct spread *spread);

/* Let all become members. */
int receivers_offer(struct spread *spread);

/* Until each has the file, or has failed. One that fails does not end it: spread->code. */
int receivers_wait(struct spread *spread);

/* Let all leave; with an error those who are not complete throw away what they have. */
void receivers_end(struct spread *spread, int error);

/* Close what was opened. Takes the exit code so far and returns it, or its own if that is 0. */
int receivers_close(struct spread *spread, int code);

#endif
