/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fabric handles: GPU memory of another host in the same NVLink domain (GB200, multi-node NVLink).
 *
 * domain.c: which domain our GPUs are in. fabric.c: the initiator, which asks over the control
 * connection. fabric-owner.c: the owner, who answers. The frames are in wire.h.
 *
 * A handle is a capability: whoever holds it, in the domain, may read and write the whole
 * allocation until he lets go of it. So it is sent only for a region that is all of its allocation
 * and that the session may read and write, and over TLS unless the setting `fabric` says otherwise
 * (docs/security.md).
 */
#ifndef WH_TRANSPORT_CUDA_FABRIC_H
#define WH_TRANSPORT_CUDA_FABRIC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "platform/cuda.h"
#include "transport/cuda/wire.h"
#include "util/error.h"
#include "util/list.h"
#include "util/loop.h"

struct wh_cuda_peer;
struct wh_device_mapping;
struct wh_device_mappings;
struct wh_engine;
struct wh_exported;
struct wh_frame;
struct wh_peer;
struct wh_region_entry;
struct wh_registration;
struct wh_remote_region;
struct wh_session;

/* ---- the domains of our GPUs ----------------------------------------------------------------- */

/* Part of struct wh_device_mappings. Under its lock. */
struct wh_fabric_domains {
	pthread_mutex_t lock;
	int64_t looked_at; /* ns of wh_now(); 0: NVML has not been asked */
	uint64_t members; /* bit n: device n is in a domain; constant once it is not 0 */
	struct wh_fabric_domain of[WH_CUDA_DEVICES];
	char why[WH_REFUSAL]; /* why no GPU is in one */
};

void wh_fabric_domains_init(struct wh_fabric_domains *domains);
void wh_fabric_domains_destroy(struct wh_fabric_domains *domains);
/* Ask NVML, unless a GPU is known to be in a domain or NVML was asked a moment ago. May block for
 * seconds; CUDA is ready. 0, or -EOPNOTSUPP with the reason: no GPU is in a domain. */
int wh_fabric_domains_look(struct wh_device_mappings *mappings, char why[WH_REFUSAL]);
/* The domain of a device, as far as it has been asked for. False: none, with the reason. Does not
 * block. */
bool wh_fabric_domain_of(struct wh_device_mappings *mappings, const struct wh_cuda_device *device,
			 struct wh_fabric_domain *out, char why[WH_REFUSAL]);
bool wh_fabric_domains_equal(const struct wh_fabric_domain *one,
			     const struct wh_fabric_domain *other);
/* May the device map memory of the domain? */
bool wh_fabric_domain_has(struct wh_device_mappings *mappings, const struct wh_cuda_device *device,
			  const struct wh_fabric_domain *domain);
/* "cluster UUID, clique 2" */
#define WH_FABRIC_DOMAIN_TEXT 64
void wh_fabric_domain_text(const struct wh_fabric_domain *domain, char out[WH_FABRIC_DOMAIN_TEXT]);
/* May handles be sent and taken? 0, or -EOPNOTSUPP with the reason. */
int wh_fabric_check_setting(const struct wh_engine *engine, char why[WH_REFUSAL]);

/* ---- the owner ------------------------------------------------------------------------------- */

/* The transport's region_coming: find out, while it may wait, what an answer will need. */
void wh_fabric_region_coming(struct wh_engine *engine, void *state,
			     const struct wh_registration *registration);
/* The transport's session_frame. */
int wh_fabric_session_frame(struct wh_session *session, const struct wh_frame *frame,
			    const uint8_t *payload);

/* ---- the initiator --------------------------------------------------------------------------- */

/* A refusal, so that the owner is not asked again for a while. */
struct wh_fabric_refusal {
	uint64_t id; /* of the region; 0: unused */
	int error;
	int64_t until; /* ns of wh_now() */
	char why[WH_REFUSAL];
};
#define WH_FABRIC_REFUSALS 16

/* Part of struct wh_cuda_peer, under its lock but for `generation` and `imports`. */
struct wh_fabric_peer {
	pthread_cond_t changed; /* an answer has come, or the peer is lost */
	struct wh_list questions; /* struct question of fabric.c */
	uint64_t tokens; /* the last one given */
	struct wh_fabric_refusal refusals[WH_FABRIC_REFUSALS];
	unsigned next_refusal;
	_Atomic uint32_t generation; /* counts the control connections to the peer */
	struct wh_list imports; /* struct wh_device_mapping; under mappings.lock */
	struct wh_timer sweep; /* ends imports of a lost peer when no copy uses them any more */
};

void wh_fabric_peer_open(struct wh_cuda_peer *cuda);
void wh_fabric_peer_close(struct wh_cuda_peer *cuda);
void wh_fabric_peer_lost(struct wh_cuda_peer *cuda);
void wh_fabric_peer_again(struct wh_cuda_peer *cuda);
/* The transport's peer_frame. */
int wh_fabric_peer_frame(struct wh_peer *peer, void *state, const struct wh_frame *frame,
			 const uint8_t *payload);
/* Is the peer on another host? */
bool wh_fabric_is_apart(const struct wh_peer *peer);
/* As wh_cuda_remote(), for such a peer. */
int wh_fabric_remote(struct wh_cuda_peer *cuda, struct wh_region_entry *entry,
		     struct wh_device_mapping **out, char why[WH_REFUSAL]);
/* Ask the owner for the handles of a region. Calls `each` for every segment, in order, with the
 * domain that its GPU is in. Blocks for about 10 s at most. 0, the first error that `each`
 * returned, or another negative errno; the reason is then in `why`. */
int wh_fabric_exports(struct wh_cuda_peer *cuda, struct wh_remote_region *region,
		      int (*each)(void *arg, const struct wh_exported *exported,
				  const struct wh_fabric_domain *domain, char why[WH_REFUSAL]),
		      void *arg, char why[WH_REFUSAL]);

/* import.c: map what the owner's handles open. The mapping is the caller's, to be freed under
 * mappings.lock. 0, or a negative errno with the reason. */
int wh_fabric_import(struct wh_cuda_peer *cuda, struct wh_remote_region *region,
		     struct wh_device_mapping **out, char why[WH_REFUSAL]);

#endif
