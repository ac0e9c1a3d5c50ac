/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the plug-in share. */
#ifndef WH_COMPAT_NIXL_INTERNAL_H
#define WH_COMPAT_NIXL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include <wherry/wherry.h>

#include "compat/nixl/adapter.h"
#include "compat/nixl/info.h"
#include "util/list.h"

/* ---- objects -----------------------------------------------------------------------------------
 */

/* Another agent, or this one. Found by name until it is disconnected; freed with its last
 * reference: one while it can be found, one for each memory and each request. */
struct wh_nixl_peer {
	struct wh_list link; /* agent->peers, while it can be found */
	struct wh_nixl_agent *agent;
	struct wh_peer *peer;
	unsigned references; /* agent->lock */
	size_t name_length;
	char *name; /* NIXL's name of it */
	size_t info_length; /* as loaded; 0: this agent itself */
	char *info;
	/* Batches that sent a notification alone. A completed one sends the next. */
	pthread_mutex_t lock; /* of the next member */
	struct wh_list notes;
};

struct wh_nixl_agent {
	struct wh_engine *engine;
	pid_t owner; /* the process that opened it */
	char *name; /* NIXL's; at most 63 bytes of it are the engine's */
	size_t name_length;
	char info[WH_NIXL_INFO_MAX];
	size_t info_length;

	pthread_mutex_t lock; /* of the next members */
	struct wh_list peers; /* that can be found */
	struct wh_list memories; /* local ones */
	struct wh_list requests;

	pthread_mutex_t taking; /* of the next member */
	char notification[WH_NOTIFICATION_MAX];
};

struct wh_nixl_memory {
	struct wh_list link; /* agent->memories; of a local one */
	struct wh_nixl_agent *agent;
	uint64_t address;
	uint64_t length;
	uint32_t kind; /* enum wh_memory_kind */
	struct wh_region *region; /* NULL: not local */
	/* Of a local one: */
	unsigned registrations; /* agent->lock; NIXL's, of the very same memory */
	const void *base; /* of the allocation that it is in */
	uint64_t base_length;
	/* Of a remote one: */
	struct wh_nixl_peer *peer;
	uint64_t id; /* of the peer's region */
	unsigned char key[WH_KEY_MAX];
	size_t key_length;
	/* The local memory with which it was last prepared (request.c); its address, never
	 * followed. Read and written without a lock. */
	_Atomic(const struct wh_nixl_memory *) prepared;
};

/* ---- agent.c ------------------------------------------------------------------------------------
 */

/* Print a line, "wherry: nixl: agent NAME: text". */
void wh_nixl_say(const struct wh_nixl_agent *agent, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Print what failed, with wh_error_text(), and return NIXL's code of `error`, a negative errno. */
int wh_nixl_fail(const struct wh_nixl_agent *agent, int error, const char *what);

/* Is this a fork of the process that opened the agent? Its objects are that one's: here they are
 * left alone when NIXL's agent ends. */
bool wh_nixl_agent_is_inherited(const struct wh_nixl_agent *agent);

/* NIXL's code of 0 or a negative errno. */
int wh_nixl_status(int error);

/* ---- peer.c
 * --------------------------------------------------------------------------------------- */

/* Find a peer by name, with a reference; the agent's own name is itself, connected if necessary.
 * NULL: there is none, which is said. */
struct wh_nixl_peer *wh_nixl_peer_get(struct wh_nixl_agent *agent, const char *name, size_t length);

/* One more reference, for one who has one. */
void wh_nixl_peer_hold(struct wh_nixl_peer *peer);

void wh_nixl_peer_put(struct wh_nixl_peer *peer);

/* Forget all peers. */
void wh_nixl_peers_forget(struct wh_nixl_agent *agent);

/* ---- memory.c
 * ------------------------------------------------------------------------------------ */

/* Unregister and free all local memory that is left. */
void wh_nixl_memories_free(struct wh_nixl_agent *agent);

/* ---- request.c
 * ------------------------------------------------------------------------------------ */

/* Cancel and free all requests that are left. */
void wh_nixl_requests_free(struct wh_nixl_agent *agent);

/* ---- notify.c
 * -------------------------------------------------------------------------------------- */

/* Give the batch a notification of this agent. 0 or a negative errno. */
int wh_nixl_notification_attach(const struct wh_nixl_agent *agent, struct wh_batch *batch,
				const char *message, size_t length);

/* Cancel and free the batches of notifications. */
void wh_nixl_notes_free(struct wh_nixl_peer *peer);

#endif
