/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of the transport cuda, which travel over the control connection: fabric handles of GPU
 * memory for another host. Little-endian. The codecs are pure: no sockets, no allocation; decoders
 * return 0 or -EPROTO and set *out on success only.
 */
#ifndef WH_TRANSPORT_CUDA_WIRE_H
#define WH_TRANSPORT_CUDA_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "transport/shm/wire.h"
#include "wire/wire.h"

enum wh_cuda_frame {
	/* The initiator asks for handles; sent only to engines with WH_CAPABLE_FABRIC_HOSTS. */
	WH_FRAME_FABRIC_ASK = WH_FRAME_TRANSPORTS + 20,
	/* One for each segment, at most WH_EXPORTS for an ASK; the last may be a refusal. */
	WH_FRAME_FABRIC_ANSWER,
	WH_FRAME_FABRIC_END,
};

/* GPUs of one NVLink domain reach each other's memory, also those of different hosts. */
struct wh_fabric_domain {
	uint8_t cluster[16]; /* a UUID */
	uint32_t clique;
};

#define WH_FABRIC_DOMAINS 16
#define WH_FABRIC_DOMAIN_SIZE 20

/* On the wire: u64 token, u64 region, u32 segment, u32 number of domains, and these: cluster[16],
 * u32 clique. */
struct wh_fabric_ask {
	uint64_t token; /* the answers repeat it */
	uint64_t id; /* the region */
	uint32_t segment; /* the first one wanted */
	uint32_t domain_count; /* 1 to WH_FABRIC_DOMAINS */
	struct wh_fabric_domain domains[WH_FABRIC_DOMAINS]; /* of the initiator's GPUs */
};
#define WH_FABRIC_ASK_HEAD 24
#define WH_FABRIC_ASK_MAX (WH_FABRIC_ASK_HEAD + WH_FABRIC_DOMAINS * WH_FABRIC_DOMAIN_SIZE)
/* Returns the bytes used, at most WH_FABRIC_ASK_MAX. */
size_t wh_fabric_ask_encode(uint8_t *out, const struct wh_fabric_ask *ask);
int wh_fabric_ask_decode(const uint8_t *in, size_t length, struct wh_fabric_ask *out);

/* On the wire: u64 token, u32 domain, then the payload of an EXPORTED. */
struct wh_fabric_answer {
	uint64_t token;
	uint32_t domain; /* the one of the ASK's that the segment's GPU is in; 0 with an error */
	struct wh_exported exported; /* of the type FABRIC, or an error */
};
#define WH_FABRIC_ANSWER_HEAD 12
#define WH_FABRIC_ANSWER_MAX (WH_FABRIC_ANSWER_HEAD + WH_EXPORTED_MAX)
/* Returns the bytes used, at most WH_FABRIC_ANSWER_MAX. */
size_t wh_fabric_answer_encode(uint8_t *out, const struct wh_fabric_answer *answer);
int wh_fabric_answer_decode(const uint8_t *in, size_t length, struct wh_fabric_answer *out);

#endif
