/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running a plan: the insides of wherry/weights.h.
 *
 * Members read; nobody writes to another's memory. Each has a control block (message.h), which
 * says what it has, and a link to each member that it reads from or that may read from it. A link
 * looks at the other's control block when a hello comes: first the head, then, if a buffer is
 * being filled, the list of its pieces. Bytes that were read count when the head, read once more,
 * still has the version; then they are announced in this member's own control block, so that others
 * may read them here.
 *
 * One thread (loop.c) does all of that, under `lock`; it never waits for a single member. The ear,
 * another thread, takes the notifications. Public functions take `lock`, and wake the loop.
 */
#ifndef WH_WEIGHTS_RUN_RUN_H
#define WH_WEIGHTS_RUN_RUN_H

#include <pthread.h>

#include <wherry/wherry.h>

#include "util/error.h"
#include "weights/plan.h"
#include "weights/run/message.h"
#include "weights/run/phases.h"

#define WH_FETCHES 6 /* that a link has under way at once */
#define WH_FETCH_RANGES 64
#define WH_FETCH_BYTES (UINT64_C(4) << 20) /* about; part.c has other sizes for other links */
#define WH_NO_STEP UINT32_MAX

struct wh_weights;
struct wh_link_to;

/* A batch of a link. */
enum wh_link_job_kind { WH_JOB_HELLO, WH_JOB_LOOK, WH_JOB_DATA };

struct wh_link_job {
	struct wh_link_to *link;
	struct wh_batch *batch; /* NULL: not made yet */
	enum wh_link_job_kind kind;
	bool running;
	uint32_t life; /* of the link, when it began */
};

/* Pieces [piece, piece + count) of a step. */
struct wh_pieces {
	uint32_t own, piece, count;
};

enum wh_fetch_state {
	WH_FETCH_RUNNING,
	WH_FETCH_LANDED, /* the bytes are here; were they of the version? */
	WH_FETCH_CHECKING, /* the head is being read once more */
	WH_FETCH_GOOD,
	WH_FETCH_FAILED,
};

struct wh_fetch {
	struct wh_link_job job;
	enum wh_fetch_state state;
	enum wh_copy_slot slot; /* that it reads */
	uint32_t count;
	uint64_t bytes; /* about */
	struct wh_pieces ranges[WH_FETCH_RANGES];
};

/* What the running look reads. */
enum wh_look { WH_LOOK_HEAD, WH_LOOK_KNOW, WH_LOOK_PIECES, WH_LOOK_TEXT };

enum wh_link_to_state { WH_LINK_IDLE, WH_LINK_OPENING, WH_LINK_OPEN };

/* Another member, or this one itself. */
struct wh_link_to {
	struct wh_weights *weights;
	uint32_t node;
	bool wanted, leaving; /* leaving: close it when nothing runs */
	bool connected, ever; /* now; and whether it was once known */
	int refused; /* 0, or why, with `error`: -EINVAL: other layouts; -EACCES; -EPROTO */
	bool differs; /* it says that it has other layouts */
	bool compare; /* find out where */
	bool planned; /* this member's plan reads from it */
	enum wh_link_to_state state;
	char url[WH_HELLO_URL];
	struct wh_peer *peer;
	uint64_t epoch; /* of the peer that was opened */
	uint64_t old_epoch; /* hello_epoch when it began to be opened */
	int64_t again; /* when to try again, monotonic ns */
	int64_t pause; /* nothing is requested before */
	uint32_t failures;
	uint32_t running; /* jobs */
	char error[WH_TEXT_MAX];

	/* What it said of itself. */
	struct wh_weights_hello hello;
	uint64_t hello_epoch; /* 0: nothing yet */
	uint32_t life; /* how many weights have said hello */
	bool met; /* known, since it said so */
	bool gone; /* it has left, and not said hello since */
	int64_t doubt; /* since when it is not known whether it has left or refuses; 0: it is */
	int refusal; /* what `refused` becomes if it is still there */
	int64_t remind, remind_pause; /* when a hello is due, as none has come; 0: one has */
	bool kick; /* a hello is due */
	bool ask, answer; /* in that hello */
	uint16_t question; /* the number of the one that `doubt` asks; 0: it has asked none */
	uint16_t answering; /* the number of its question */
	struct wh_link_job greeting;

	/* What it has. */
	bool look; /* its control block must be looked at */
	bool known; /* the ids are here, and its regions known to the engine */
	enum wh_look looking;
	int64_t look_pause; /* it is not looked at before */
	int64_t look_since; /* when the running look, or the last one, began */
	struct wh_link_job looker;
	uint8_t *mirror; /* of its control block, in weights.mirror_region */
	uint64_t mirror_offset;
	struct wh_weights_head head;
	uint64_t pieces_version; /* the mirror has its pieces of this version; 0: of none */
	uint64_t pieces_for; /* the same for those that are being read */
	bool pieces_too; /* they are read together with the head */
	enum wh_copy_slot pieces_slot;
	struct wh_region *text_region;
	char *text;

	/* What is read from it. */
	uint64_t request_bytes; /* of one request, about */
	uint32_t window; /* requests at once */
	uint32_t first; /* own steps that are not all requested yet, by own.next */
	struct wh_fetch requests[WH_FETCHES]; /* a ring */
	uint32_t head_request, request_count;
	uint64_t bytes; /* read and checked */
	char route[72];
};

/* A step of the plan that brings bytes to this member. */
struct wh_own {
	uint32_t step; /* of the plan */
	uint32_t from, before; /* as struct wh_step: where it is read now */
	uint32_t node; /* whose link */
	uint32_t next; /* own step; WH_NO_STEP */
	uint32_t pieces;
	uint32_t requested, done, flying; /* pieces, pieces, requests */
	bool listed;
};

struct wh_own_region {
	uint32_t index; /* of its layout */
	void *address[2];
	struct wh_region *region[2];
	bool allocated;
};

/* The version that is being received. */
struct wh_attempt {
	uint64_t version; /* 0: none */
	uint32_t buffer, left; /* left: steps that are not done */
	uint32_t flying; /* requests */
	bool aborting;
	bool stuck; /* a step waits for a member that has it no more, and nobody else has it */
	uint64_t bytes;
	int64_t since; /* monotonic ns */
	int64_t came; /* when bytes came last, or it began */
	int64_t grace; /* when steps stop waiting for those that have not got it; 0: they have */
};

/* What the ear has heard. */
struct wh_heard {
	struct wh_heard *next;
	uint64_t epoch;
	char sender[64];
	struct wh_weights_hello hello;
};

struct wh_weights {
	struct wh_engine *engine;
	char name[32];
	uint64_t tag;
	struct wh_layout *layouts[2]; /* sources, targets */
	struct wh_plan *plan;
	uint32_t me; /* a node of the plan's cluster */
	bool is[2]; /* a source, a target */
	char *text; /* both layouts */
	uint64_t text_bytes, digest[2];
	struct wh_region *text_region;

	/* Who has what, by node; and where a region, or a step, is in its engine's lists. */
	uint32_t *node_regions[2], *node_steps;
	uint32_t *region_position[2];
	uint32_t *step_position;

	struct wh_own_region *regions[2];
	uint32_t region_count[2];
	bool single; /* a region of the target has one buffer: one version, and no other */
	void **addresses[2]; /* of the target's regions, by buffer */

	uint64_t *control;
	uint64_t *control_ids;
	uint32_t *control_pieces[2];
	uint64_t control_bytes;
	struct wh_region *control_region;
	uint8_t *mirror;
	struct wh_region *mirror_region;

	struct wh_own *own;
	uint32_t own_count;
	uint32_t *followers, *follower_first; /* nodes; of own step i: from first[i] on */
	uint64_t own_bytes;
	uint32_t *holders, *holder_first; /* slices of the sources; by tensor of the targets */

	struct wh_link_to *links; /* by node */
	struct wh_queue *queue;
	struct wh_peer *self; /* to wake the ear */
	struct wh_attempt attempt;
	uint64_t instead; /* the version to begin next, as another one is stuck; 0: the best */
	int64_t turn; /* how long one that is stuck is kept, ns; 0: as long as the first one */
	int64_t heard_at; /* when somebody was first seen to have a newer version; 0: nobody has */
	struct wh_phases phases; /* of the version that is being received, or was last */
	int64_t published_at, arrived_after; /* when; ns until wait() saw it at all, 0: not yet */
	int64_t seek_at, seek_pause; /* for targets that have what the sources have no more */
	uint32_t seek_own; /* step */
	uint64_t published, current, total;
	uint64_t cancelled; /* this version and those before are not received */
	uint32_t current_buffer, pins[2];
	bool offered; /* published and not retracted */

	bool ended; /* reads have ended since wh_weights_receive() looked at what is left */
	bool stray; /* steps may have to go elsewhere, or could now */
	/* For explanations. A tick is a turn of the loop that neither an event nor a timer has
	 * asked for: it looks whether something got lost. */
	uint64_t work; /* reads, versions and connections begun, ended or lost; steps moved */
	uint64_t ticks, ticks_found; /* found: that did work which nothing had woken the loop for */

	pthread_mutex_t lock;
	pthread_cond_t changed;
	int wake;
	bool stop, stopped;
	pthread_t loop, ear;
	bool loop_started, ear_started;
	struct wh_heard *heard, **heard_end; /* under `lock` */
};

/* ---- layouts.c --------------------------------------------------------------------------------
 */

/* A layout from what a program gives. */
int wh_weights_layout_make(const struct wh_weights_layout *desc, const char *label,
			   struct wh_layout **out);

/* Both layouts as lines of text, the same on all members that have the same layouts; at most
 * WH_TEXT_KEPT bytes are kept, the digest is of all. 0, or -ENOMEM. */
#define WH_TEXT_KEPT (UINT64_C(1) << 20)
int wh_weights_describe(struct wh_weights *weights, uint64_t chunk, uint64_t piece);

/* Say in link->error where the other's text differs; NULL: it could not be read. */
void wh_weights_differ(struct wh_link_to *link, const char *theirs, uint64_t length);

/* ---- part.c: this member's part of the plan -----------------------------------------------------
 */

int wh_weights_part(struct wh_weights *weights);
void wh_weights_part_free(struct wh_weights *weights);

/* Bytes of a node's control block. */
uint64_t wh_weights_control_bytes(const struct wh_weights *weights, uint32_t node);

/* Another one that has a step's cell, by the layouts. Zeroed before the first call. */
struct wh_candidate {
	uint32_t source, step; /* where to go on */
	bool steps;
	uint32_t from, before, node; /* as in struct wh_own */
};
bool wh_weights_candidate(const struct wh_weights *weights, const struct wh_own *own,
			  struct wh_candidate *out);

/* Put what a request reads into its batch. */
int wh_weights_fill(struct wh_weights *weights, struct wh_fetch *request);

/* ---- memory.c: regions --------------------------------------------------------------------------
 */

int wh_weights_memory(struct wh_weights *weights, const struct wh_weights_options *options);
/* 0, or -EBUSY: call again. */
int wh_weights_memory_free(struct wh_weights *weights);

/* ---- link.c -------------------------------------------------------------------------------------
 */

/* Connected, and its head and ids are known. */
static inline bool wh_link_usable(const struct wh_link_to *link)
{
	return link->connected && link->known && !link->leaving && !link->refused;
}

void wh_link_drive(struct wh_link_to *link, int64_t now);
/* When the link has something to do though nothing happens; INT64_MAX: never. Times up to `now`
 * have been seen to. */
int64_t wh_link_due(const struct wh_link_to *link, int64_t now);
void wh_link_heard(struct wh_link_to *link, const struct wh_weights_hello *hello, uint64_t epoch);
void wh_link_opened(struct wh_link_to *link, int status);
/* A last hello, when the loop has ended; wh_link_close() waits for nothing, so wait for this. */
void wh_link_bye(struct wh_link_to *link, int64_t deadline);
void wh_link_bye_wait(struct wh_link_to *link, int64_t deadline);
void wh_link_close(struct wh_link_to *link); /* waits: cancels what runs */
void wh_link_job_done(struct wh_link_job *job, int status);
/* Start a job's batch; if that fails, it is done with the error. */
void wh_link_job_submit(struct wh_link_job *job);
/* Make or empty a job's batch. */
int wh_link_job_batch(struct wh_link_job *job);
void wh_link_fail(struct wh_link_to *link, const char *text);

/* The newest version that a target has whole. */
uint64_t wh_link_whole(const struct wh_link_to *link);
/* Where the link has, or receives, this version. False: nowhere. */
bool wh_link_slot(const struct wh_link_to *link, uint64_t version, bool source,
		  enum wh_copy_slot *out);

/* ---- receive.c ----------------------------------------------------------------------------------
 */

void wh_weights_receive(struct wh_weights *weights, int64_t now); /* choose, begin, finish */
void wh_weights_abort(struct wh_weights *weights); /* throw away what is being received */
/* How much of the version has come: also of requests that run, which may take minutes. */
uint64_t wh_weights_received(const struct wh_weights *weights);
/* What waits in vain goes elsewhere. */
void wh_weights_elsewhere(struct wh_weights *weights, int64_t now);
/* The same, and look at all from whom something is missing. */
void wh_weights_tick(struct wh_weights *weights, int64_t now);
int64_t wh_weights_due(const struct wh_weights *weights, int64_t now); /* as wh_link_due() */
void wh_link_fetch(struct wh_link_to *link);
void wh_link_checked(struct wh_link_to *link, bool read); /* the head has been read once more */
void wh_fetch_landed(struct wh_fetch *request, int status);

/* ---- weights.c ----------------------------------------------------------------------------------
 */

/* At the top of every public function: -EINVAL for NULL, -EPERM in a forked child, else 0. */
int wh_weights_guard(const struct wh_weights *weights, const char *call);

/* ---- loop.c -------------------------------------------------------------------------------------
 */

/* The sooner of two times; one that has come already is none. */
static inline int64_t wh_time_next(int64_t due, int64_t time, int64_t now)
{
	return time > now && time < due ? time : due;
}

int wh_weights_start(struct wh_weights *weights);
void wh_weights_stop(struct wh_weights *weights);
void wh_weights_wake(struct wh_weights *weights);
/* Hellos to all who are connected: this member's control block has changed. */
void wh_weights_tell(struct wh_weights *weights);

#endif
