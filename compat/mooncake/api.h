/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libtransfer_engine.so, Mooncake's C interface on top of Wherry: api-engine.c (engines, received
 * notifications), api-memory.c (registration), api-segment.c (other engines), api-batch.c
 * (transfers), api-connection.c (transfers over Mooncake's TCP, sent notifications), api-links.c
 * (showLinks()).
 *
 * Under an engine's lock, only functions of Wherry that neither block nor call back are called.
 */
#ifndef WH_COMPAT_MOONCAKE_API_H
#define WH_COMPAT_MOONCAKE_API_H

#include <pthread.h>
#include <sys/types.h>

#include <wherry/wherry.h>

#include "compat/mooncake/mooncake.h"
#include "compat/mooncake/staging.h"
#include "compat/mooncake/store.h"
#include "compat/mooncake/transfer_engine_c.h"
#include "util/clock.h"
#include "util/list.h"
#include "util/log.h"

/* Errors of set-up functions; batch functions return the same numbers without the sign. */
enum te_error {
	TE_ARGUMENT = -1,
	TE_TOO_MANY = -2,
	TE_NOT_REGISTERED = -3,
	TE_BUSY = -4,
	TE_DEVICE = -6,
	TE_OVERLAP = -7,
	TE_HOST = -101,
	TE_SOCKET = -102,
	TE_METADATA = -200,
	TE_PEER = -201,
	TE_MEMORY = -302,
};

struct te_engine;

/* Keep the text for wherryErrorText() and return the error. */
int te_fail(enum te_error error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* True, with an error text: the engine belongs to the process that forked this one. What it locks
 * may be locked here for ever, and its names in the store are of an engine that lives. */
bool te_forked(const struct te_engine *engine, const char *call);
/* A function of Wherry's returned `error`: keep its text behind `what`. */
int te_fail_wherry(int error, const char *what);
/* The same for a function of compat/mooncake's own. */
int te_fail_mooncake(int error, const char *what);

#define TE_STAGING (512 << 10) /* bytes of host memory between a socket and a GPU */
#define TE_CONNECTIONS 4 /* to one Mooncake engine */
#define TE_RUNNING 1 /* a result that is still open; else 0 or a negative errno */

/* Registered memory. */
struct te_memory {
	uint64_t address, length;
	struct wh_region *region;
	char name[32];
	bool published, staged;
	bool leaving; /* is being registered or unregistered: new requests may not use it */
	unsigned uses; /* requests being submitted, or moving by Mooncake's TCP */
};

/* How a segment is reached. Lives as long as it has references. */
struct te_link {
	struct te_engine *engine;
	unsigned references;
	char name[WH_MOONCAKE_NAME_MAX];
	char control[WH_MOONCAKE_NAME_MAX + 10]; /* HOST:PORT; "": not known */
	char host[WH_MOONCAKE_NAME_MAX]; /* of the data port */
	struct wh_peer *peer; /* NULL: transfers use Mooncake's TCP */
	char why[WH_TEXT_MAX]; /* why transfers use Mooncake's TCP */
	struct wh_mooncake_segment segment; /* as last fetched */
	uint64_t read, written; /* bytes, by Mooncake's TCP */

	/* Threads, each with a connection: transfers by TCP, and notifications. */
	struct wh_list jobs;
	pthread_cond_t more;
	unsigned workers, idle;
	/* threads that have not taken a job yet: idle ones that were signalled, and new ones */
	unsigned signalled, started;
	unsigned moving; /* threads that move several small requests at once, which takes little
			    time */
	unsigned waiting; /* jobs */
	int64_t answered; /* when the last job ended well */
	bool stop;
	struct te_worker {
		struct te_link *link;
		pthread_t thread;
		int64_t begun; /* when it took its jobs; 0: it has none */
		struct wh_mooncake_connection connection;
		struct wh_mooncake_staging staging;
	} worker[TE_CONNECTIONS];
};

struct te_segment {
	char name[WH_MOONCAKE_NAME_MAX];
	struct te_link *link; /* NULL: closed */
};

/* One submission's requests for one segment. */
struct te_part {
	struct te_submission *submission;
	struct te_link *link;
	/* NULL: uses Mooncake's TCP, has nothing to move, or is not submitted yet */
	struct wh_batch *batch;
	size_t moving; /* requests with bytes */
};

struct te_job {
	struct wh_list at;
	struct te_request *request; /* NULL: the submission's notification */
	struct te_submission *submission;
	int64_t posted; /* ns of wh_now() */
};

struct te_request {
	struct te_part *part;
	size_t index; /* in its part's batch */
	struct te_memory *memory;
	struct te_job job;
	uint64_t local, remote, length;
	bool write;
	int result; /* TE_RUNNING: the part's batch, if there is one, has the result */
};

/* One submission. */
struct te_submission {
	struct te_engine *engine;
	struct te_batch *batch;
	struct te_request *requests;
	size_t count;
	struct te_part *parts;
	size_t part_count;
	/* requests by TCP, and batches of a submission with a notification, that have not ended; 1
	 * more while the call submits */
	size_t left;
	char text[WH_TEXT_MAX]; /* of the first request that failed */
	int error; /* of the first one that failed */
	/* The notification; NULL: none. */
	char *name, *message;
	struct te_job job;
	/* TE_RUNNING until the peer confirms it; -ECANCELED: not sent, because a request failed */
	int notify_result;
};

struct te_batch {
	size_t capacity, count;
	unsigned references; /* calls that use it, and the table's */
	struct te_request **requests;
	size_t room; /* entries allocated in `requests` */
	struct te_submission **submissions;
	size_t submission_count;
};

struct te_slot {
	struct te_batch *batch; /* NULL: free */
	uint32_t generation;
};

struct te_notification {
	struct wh_list at;
	size_t size;
	char *name, *message;
};

struct te_engine {
	pid_t owner;
	pthread_mutex_t lock;
	pthread_cond_t ended; /* a submission has no requests left, or its notification has ended */
	pthread_mutex_t
		publishing; /* taken before `lock`: serializes changes of the published memory */
	pthread_mutex_t store_lock; /* taken within `publishing`: serializes the store */
	struct wh_engine *wherry;
	struct wh_mooncake_server *server;
	int64_t timeout; /* ns */
	unsigned cpus;
	char name[WH_MOONCAKE_NAME_MAX];
	struct wh_mooncake_endpoint endpoint; /* of the control port */
	const struct wh_mooncake_store_ops *store_ops; /* NULL: engines ask each other */
	void *store;
	bool in_store;
	struct wh_mooncake_keeper *keeper; /* NULL: there is no store */
	struct wh_log log;

	struct te_memory **memories; /* by address */
	size_t memory_count;
	/* where 0 bytes are registered, once for each time: nothing is published of them */
	uint64_t *empty;
	size_t empty_count;
	/* what the server has, and what it gets next; the second one is there after a
	 * registration, until the list is published */
	struct wh_mooncake_memory *served, *spare[2];
	struct wh_mooncake_staging staging; /* the server's */

	struct te_segment **segments;
	size_t segment_count;

	struct te_slot *slots;
	size_t slot_count;

	struct wh_list notifications;
	size_t notification_count, notification_bytes;
};

/* ---- memory ------------------------------------------------------------------------------- */

/* The memory that contains all of [address, address+length); NULL: none. Under the lock. */
struct te_memory *te_memory_find(struct te_engine *engine, uint64_t address, uint64_t length);
/* Unregister and free all memory of an engine that is destroyed. */
void te_memory_free(struct te_engine *engine);
/* The name of the Wherry region whose memory starts at `address`. */
void te_region_name(uint64_t address, char out[32]);
/* Publish the engine's memory in the store again, if it is to be there. */
int te_memory_publish_again(struct te_engine *engine);
/* The server's callback: copy between the staging memory and memory that the CPU cannot access. */
int te_memory_copy(void *arg, const struct wh_mooncake_memory *memory, uint64_t offset,
		   size_t length, bool to_memory);

/* ---- segments ----------------------------------------------------------------------------- */

/* Take a reference to the link of segment `id`, connecting first if necessary. 0 or an error. */
int te_link_get(struct te_engine *engine, segment_id_t id, struct te_link **out);
/* May block. NULL is fine. */
void te_link_put(struct te_link *link);
/* Fetch again what the segment publishes. 0 or an error. */
int te_link_refresh(struct te_link *link);
/* Is `id` a segment, LOCAL_SEGMENT included? Under the lock. */
bool te_segment_known(const struct te_engine *engine, int64_t id);
void te_segments_free(struct te_engine *engine);

/* ---- connections ---------------------------------------------------------------------------- */

/* Queue a job for the link's threads. Under the lock. */
void te_job_post(struct te_link *link, struct te_job *job);
/* End the link's threads and cancel the jobs that they have not begun. Blocks. */
void te_link_stop(struct te_link *link);

/* ---- batches ------------------------------------------------------------------------------ */

/* A part or a request of the submission has ended. After the last, send the notification or cancel
 * it. Under the lock. */
void te_submission_part_ended(struct te_submission *submission, int error, const char *text);
/* Cancel and free all batches of an engine that is destroyed. */
void te_batches_free(struct te_engine *engine);

/* ---- notifications ------------------------------------------------------------------------ */

int te_notified(void *arg, const char *name, const char *message);
void te_notifications_free(struct te_engine *engine);

#endif
