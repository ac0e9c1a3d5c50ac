/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NIXL's backend on top of Wherry's API, in C: what plugin.cpp calls with NIXL's own types taken
 * apart. An agent here is one backend of one NIXL agent; it has an engine of its own.
 *
 * All functions return an enum wh_nixl_status, and print the reason of an error, with Wherry's
 * text, as one line to stderr. Unless a comment says otherwise any thread may call them, and none
 * blocks on a peer.
 */
#ifndef WH_COMPAT_NIXL_ADAPTER_H
#define WH_COMPAT_NIXL_ADAPTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_nixl_agent;
struct wh_nixl_memory;
struct wh_nixl_request;

/* NIXL's status codes; the same in all versions since 1.0.0. */
enum wh_nixl_status {
	WH_NIXL_IN_PROGRESS = 1,
	WH_NIXL_OK = 0,
	WH_NIXL_NOT_POSTED = -1,
	WH_NIXL_INVALID = -2,
	WH_NIXL_BACKEND = -3,
	WH_NIXL_NOT_FOUND = -4,
	WH_NIXL_MISMATCH = -5,
	WH_NIXL_NOT_ALLOWED = -6,
	WH_NIXL_REPOST_ACTIVE = -7,
	WH_NIXL_UNKNOWN = -8,
	WH_NIXL_NOT_SUPPORTED = -9,
	WH_NIXL_DISCONNECTED = -10,
	WH_NIXL_CANCELLED = -11,
};

/* ---- the agent (agent.c) ----------------------------------------------------------------------
 */

/* An option of the backend: a setting of Wherry. */
struct wh_nixl_option {
	const char *name;
	const char *value;
};

/* Open the engine of an agent. `name` is the agent's, and need not end with a NUL. The options are
 * settings (wh_config_row), of which those with their defaults do not count; one that is none is
 * refused, unless `foreign`: then it was meant for the backend whose name this plug-in has taken,
 * and is mentioned and left out. Everything is copied. */
int wh_nixl_agent_open(const char *name, size_t name_length, const struct wh_nixl_option *options,
		       size_t option_count, bool foreign, struct wh_nixl_agent **out);

/* Close the engine. Requests that were not released are cancelled, and memory that is still
 * registered is unregistered. Blocks until peers on this host have let go of it. */
void wh_nixl_agent_close(struct wh_nixl_agent *agent);

/* What other agents need to reach this one (info.h). *text is the agent's. */
int wh_nixl_agent_info(struct wh_nixl_agent *agent, const char **text, size_t *length);

/* ---- peers (peer.c) ---------------------------------------------------------------------------
 */

/* Connect to the agent `name`, whose connection info is given. Blocks until it answers, at most the
 * setting `timeout`. A second call with the same info does nothing; one with another info takes the
 * place of the first. */
int wh_nixl_peer_load(struct wh_nixl_agent *agent, const char *name, size_t name_length,
		      const char *info, size_t info_length);

/* Is the agent known, and connected? The agent's own name is: it reaches itself. */
int wh_nixl_peer_connect(struct wh_nixl_agent *agent, const char *name, size_t name_length);

/* Forget the agent. Its connections are closed when the last of its memory is unloaded and the last
 * request to it is released. */
int wh_nixl_peer_disconnect(struct wh_nixl_agent *agent, const char *name, size_t name_length);

/* ---- memory (memory.c) ------------------------------------------------------------------------
 */

/* Register memory. `gpu` is the number of the GPU that the caller says it is on; -1: host memory.
 * Memory of another kind or GPU is refused. The very same range, registered twice, is one object,
 * which is unregistered twice. */
int wh_nixl_memory_register(struct wh_nixl_agent *agent, uintptr_t address, size_t length, int gpu,
			    struct wh_nixl_memory **out);

/* Unregister memory and free the object. Blocks until peers no longer use it. If a peer on this
 * host does not let go of it in time, that is said, and tried again when the agent is closed. */
int wh_nixl_memory_unregister(struct wh_nixl_memory *memory);

/* Write the key of registered memory, which the other side gives to wh_nixl_memory_load(). `out`
 * has room for WH_KEY_MAX bytes; *length is set. */
int wh_nixl_memory_key(const struct wh_nixl_memory *memory, void *out, size_t *length);

/* Make an object for memory of the agent `name`. Asks the peer nothing: preparing a transfer does.
 */
int wh_nixl_memory_load(struct wh_nixl_agent *agent, const char *name, size_t name_length,
			const void *key, size_t key_length, struct wh_nixl_memory **out);

/* Make an object for the agent's own memory, as the remote side of a transfer to itself. */
int wh_nixl_memory_load_local(const struct wh_nixl_memory *memory, struct wh_nixl_memory **out);

/* Free an object that one of the two functions above made. */
void wh_nixl_memory_unload(struct wh_nixl_memory *memory);

/* What the memory at an address is. 0: none that CPU or GPU can read; 1: `kind` ("pageable",
 * "device", ...) is a constant, and the rest is set. */
struct wh_nixl_found {
	const char *kind;
	int gpu; /* -1: none */
	uint64_t base;
	uint64_t length; /* 0: not known */
};
int wh_nixl_memory_query(struct wh_nixl_agent *agent, uintptr_t address, struct wh_nixl_found *out);

/* ---- transfers (request.c) --------------------------------------------------------------------
 */

/* A list of descriptors as NIXL has it: `count` elements, each with an address, a length, a device,
 * and a pointer to an object of NIXL's that has a pointer to a wh_nixl_memory at a fixed offset. */
struct wh_nixl_descriptor {
	uintptr_t address;
	size_t length;
	uint64_t device;
	const char *object;
};

struct wh_nixl_list {
	const struct wh_nixl_descriptor *descriptors;
	size_t count;
	size_t memory_offset; /* of the wh_nixl_memory pointer in an object */
};

/* Prepare transfers between the elements of two lists, pair by pair. `notifies`: it will be posted
 * with a notification (it may be posted without, too). Blocks the first time that a memory of the
 * peer is used, until the peer has told about it and the way to it is open. */
int wh_nixl_request_prepare(struct wh_nixl_agent *agent, bool write, bool notifies,
			    const struct wh_nixl_list *local, const struct wh_nixl_list *remote,
			    const char *name, size_t name_length, struct wh_nixl_request **out);

/* Start it; again, once it has completed. `notification` is NULL, or what the peer receives when
 * all bytes are there. WH_NIXL_OK: it has completed already; WH_NIXL_IN_PROGRESS. */
int wh_nixl_request_post(struct wh_nixl_request *request, const char *notification,
			 size_t notification_length);

/* How is it going? Helps with it: may copy or receive up to about a MiB. Several threads may ask
 * about different requests. */
int wh_nixl_request_check(struct wh_nixl_request *request);

/* Free it. If it is under way it is cancelled first, which blocks for a round trip. */
int wh_nixl_request_release(struct wh_nixl_request *request);

/* The expected duration, in us. WH_NIXL_NOT_FOUND: it is not known yet. */
int wh_nixl_request_estimate(struct wh_nixl_request *request, uint64_t *duration);

/* ---- notifications (notify.c) -----------------------------------------------------------------
 */

/* Send a notification that belongs to no transfer. Returns before it has arrived. Those of one
 * thread arrive in their order. */
int wh_nixl_notify(struct wh_nixl_agent *agent, const char *name, size_t name_length,
		   const char *message, size_t length);

/* Call `take` for each notification that has arrived, in order, with the name of its sender. */
int wh_nixl_notifications(struct wh_nixl_agent *agent,
			  void (*take)(void *arg, const char *sender, size_t sender_length,
				       const char *message, size_t length),
			  void *arg);

/* ---- which NIXL (version.c) -------------------------------------------------------------------
 */

/* Is the NIXL at `caller`, an address in its library, one whose interface this plug-in has? Else
 * says in one line which it is, and which are known. */
bool wh_nixl_is_known(const void *caller);

/* The name by which NIXL looks for the plug-in that contains `inside`: NAME of libplugin_NAME.so.
 * A constant. "WHERRY" if the file has another name. */
const char *wh_nixl_plugin_name(const void *inside);

#ifdef __cplusplus
}
#endif
#endif
