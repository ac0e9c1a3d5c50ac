/* SPDX-License-Identifier: Apache-2.0 */
/* The table of knobs. Nothing else in the library reads the environment. */
#ifndef WH_UTIL_CONFIG_H
#define WH_UTIL_CONFIG_H

#include <stddef.h>
#include <stdint.h>

enum wh_setting {
	/* text: which transports may be used, best first, "self,cuda,shm,rdma,tcp" */
	WH_SETTING_TRANSPORTS,
	WH_SETTING_REQUIRE, /* text: the only transport allowed; "": any */
	WH_SETTING_LISTEN, /* text */
	WH_SETTING_CONNECTIONS, /* count: TCP data connections to a peer */
	WH_SETTING_THREADS, /* count: progress threads; 0: by the number of CPUs */
	WH_SETTING_SPIN, /* bool: progress threads and waiters spin instead of sleeping */
	WH_SETTING_TIMEOUT, /* ms: a peer that does not answer for so long is lost */
	WH_SETTING_IDLE, /* ms: data connections not used for so long are closed */
	WH_SETTING_INLINE, /* bytes: what a submission may copy by itself */
	WH_SETTING_SLICE, /* bytes: the most that one TCP request moves */
	WH_SETTING_BUFFER, /* bytes: socket buffers; 0: the system's */
	WH_SETTING_CMA, /* bool: process_vm_readv/writev may be used */
	WH_SETTING_NOTIFICATIONS, /* count: notifications kept until they are taken */
	/* text: the driver's library; "": the usual one; "off" or "no": none */
	WH_SETTING_CUDA,
	WH_SETTING_CTAS, /* count: CTAs of the gather-scatter kernel; 0: by the way */
	WH_SETTING_PIN, /* bool: host memory that GPUs move may be page-locked */
	/* text: ports of NICs to use, "mlx5_0,mlx5_1:2:3"; "": all; "off" or "no": none */
	WH_SETTING_RDMA,
	WH_SETTING_RDMA_CONNECTIONS, /* count: queue pairs that it opens, to all peers */
	WH_SETTING_RDMA_ANSWERS, /* count: queue pairs that it answers with, to all peers */
	WH_SETTING_RDMA_SL, /* number: service level of InfiniBand */
	WH_SETTING_RDMA_CLASS, /* number: traffic class, where there is a global route */
	/* text: ways for NICs to a GPU's memory, "dmabuf,peermem,staged" */
	WH_SETTING_RDMA_GPU,
	WH_SETTING_RDMA_RELAXED, /* bool: NICs may write what they receive in any order */
	WH_SETTING_VERBS, /* text: libibverbs; "": the usual one */
	/* text: backends of windows, first choice first, "driver,dmabuf,rm" */
	WH_SETTING_WINDOW,
	WH_SETTING_KEY, /* secret: the cluster key, 64 hex digits; "": none */
	WH_SETTING_KEYFILE, /* text: the file that it is in; "": none */
	WH_SETTING_REGISTRY, /* text: URL of the registry; "p2p": none */
	WH_SETTING_LEASE, /* ms: an engine that is silent for so long leaves the registry */
	/* text: a directory for the observers' socket; "": the usual one; "off" */
	WH_SETTING_OBSERVE,
	WH_SETTING_MAX_BUFFERED, /* bytes: the most memory held for the engines of one address */
	WH_SETTING_TLS, /* bool: control and TCP data go by TLS 1.3 */
	WH_SETTING_TLS_CERT, /* text: PEM files; all "": pre-shared keys */
	WH_SETTING_TLS_KEY,
	WH_SETTING_TLS_CA,
	WH_SETTING_COUNT,
};

#define WH_CONFIG_TEXT 256 /* the longest value and its NUL: a path may be long */

struct wh_config {
	int64_t number[WH_SETTING_COUNT]; /* count, bytes, ms, bool */
	char text[WH_SETTING_COUNT][WH_CONFIG_TEXT];
};

/* Fill from the defaults, the environment and `overrides` ("name=value", NULL-ended, or NULL).
 * 0 or -EINVAL naming the knob and the value. */
int wh_config_load(struct wh_config *config, const char *const *overrides);

/* A variable WHERRY_... that no setting reads is a misspelt one, or one of a newer version. The
 * command refuses it, the library logs it; with WHERRY_IGNORE_UNKNOWN=1 neither does. 1: the name
 * of the next one is in `out`, with control characters as they are, cut if it is longer; *cursor
 * starts at 0. 0: there are no more. -EINVAL: WHERRY_IGNORE_UNKNOWN is neither 0 nor 1. */
#define WH_CONFIG_IGNORE "WHERRY_IGNORE_UNKNOWN"
#define WH_CONFIG_VARIABLE 64
int wh_config_unknown(size_t *cursor, char out[WH_CONFIG_VARIABLE]);

/* Where this user's own files go: $XDG_RUNTIME_DIR, $XDG_CACHE_HOME, $HOME; an absolute path, or
 * "". */
struct wh_config_paths {
	char runtime[WH_CONFIG_TEXT], cache[WH_CONFIG_TEXT], home[WH_CONFIG_TEXT];
};
void wh_config_paths(struct wh_config_paths *places);

/* What engines of Mooncake's take from the environment about their store of metadata; "": not set,
 * or longer. */
struct wh_config_mooncake {
	/* $MC_REDIS_USERNAME, $MC_REDIS_PASSWORD */
	char user[WH_CONFIG_TEXT], password[WH_CONFIG_TEXT];
	char database[WH_CONFIG_TEXT]; /* $MC_REDIS_DB_INDEX */
	char cluster[WH_CONFIG_TEXT]; /* $MC_METADATA_CLUSTER_ID */
};
void wh_config_mooncake(struct wh_config_mooncake *out);

#endif
