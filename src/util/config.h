/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings. Nothing else in the library reads the environment.
 *
 * Each setting has a name, an environment variable, a default and a type. An engine reads all of
 * them once, when it opens. */
#ifndef WH_UTIL_CONFIG_H
#define WH_UTIL_CONFIG_H

#include <stddef.h>
#include <stdint.h>

enum wh_setting {
	/* text: the transports that may be used, best first, "self,cuda,shm,rdma,tcp" */
	WH_SETTING_TRANSPORTS,
	/* text: the only transport allowed; "local": no network within a machine; "": any */
	WH_SETTING_REQUIRE,
	WH_SETTING_LISTEN, /* text: ADDRESS:PORT, or "none" */
	WH_SETTING_CONNECTIONS, /* count: TCP data connections to a peer */
	WH_SETTING_THREADS, /* count: progress threads; 0: by CPUs and connections */
	WH_SETTING_SPIN, /* bool: progress threads and waiters spin instead of sleeping */
	WH_SETTING_TIMEOUT, /* ms: a peer that does not answer within this time is lost */
	WH_SETTING_IDLE, /* ms: data connections that are idle for this long are closed */
	WH_SETTING_INLINE, /* bytes: what a submission may copy or send before it returns */
	WH_SETTING_SLICE, /* bytes: largest size of one TCP request or RDMA work request */
	WH_SETTING_BUFFER, /* bytes: size of socket buffers; 0: the system's default */
	WH_SETTING_CMA, /* bool: process_vm_readv/writev may be used */
	WH_SETTING_NOTIFICATIONS, /* count: notifications kept until the program takes them */
	WH_SETTING_NOTIFICATION_BYTES, /* bytes: of all of them together */
	/* text: the CUDA driver's library; "": libcuda.so.1; "off" or "no": none */
	WH_SETTING_CUDA,
	WH_SETTING_CUFILE, /* text: libcufile: off, auto, a path */
	WH_SETTING_CTAS, /* count: CTAs of the gather-scatter kernel; 0: chosen per route */
	WH_SETTING_MODEL_FIRST, /* bool: other kernels go before those that move bytes */
	WH_SETTING_GPU_TURNS, /* count: turns in flight, beyond which small batches share one */
	WH_SETTING_COPY_THREADS, /* count: threads that copy memory; 0: by the number of CPUs */
	WH_SETTING_COPY_FROM, /* bytes: what they take if several batches are in flight; 0: by CPUs
			       */
	WH_SETTING_FILE_THREADS, /* count: threads that read and write files */
	/* text: how bytes of files are read that are not in the page cache */
	WH_SETTING_FILE_COLD,
	WH_SETTING_FILE_WRITES, /* text: how files are written: cached, direct */
	/* text: how long page-locked pages of files stay so: keep, once, off */
	WH_SETTING_FILE_PAGES,
	WH_SETTING_PIN, /* bool: page-lock host memory that GPUs read or write */
	/* text: ports of NICs to use, "mlx5_0,mlx5_1:2:3"; "": all; "off" or "no": none */
	WH_SETTING_RDMA,
	WH_SETTING_RDMA_CONNECTIONS, /* count: queue pairs opened, to all peers together */
	WH_SETTING_RDMA_ANSWERS, /* count: queue pairs accepted, from all peers together */
	WH_SETTING_RDMA_SL, /* count: InfiniBand service level */
	WH_SETTING_RDMA_CLASS, /* count: traffic class of packets with a global route header */
	/* text: how NICs reach GPU memory, best first, "dmabuf,peermem,staged" */
	WH_SETTING_RDMA_GPU,
	WH_SETTING_RDMA_RELAXED, /* bool: NICs may write received data in any order */
	WH_SETTING_VERBS, /* text: the verbs library; "": libibverbs.so.1 */
	/* text: backends of windows, best first, "driver,dmabuf,rm" */
	WH_SETTING_WINDOW,
	WH_SETTING_KEY, /* secret: the cluster key, 64 hex digits; "": none */
	WH_SETTING_KEYFILE, /* text: the file with the cluster keys; "": this user's own key */
	WH_SETTING_REGISTRY, /* text: URL of the registry; "p2p": none */
	WH_SETTING_LEASE, /* ms: an engine that is silent for this long leaves the registry */
	/* text: the directory of the observers' socket; "": the default; "off": none */
	WH_SETTING_OBSERVE,
	/* text: the level of log lines; "": the program's choice */
	WH_SETTING_LOG,
	WH_SETTING_MAX_BUFFERED, /* bytes: most memory that TCP requests from one address may occupy
				  */
	WH_SETTING_TLS, /* bool: control and TCP data connections use TLS 1.3 */
	WH_SETTING_TLS_CERT, /* text: PEM files; all three "": the cluster key */
	WH_SETTING_TLS_KEY,
	WH_SETTING_TLS_CA,
	/* text: folders where engines of other containers meet this one, "/run/wherry"; "": the
	 * defaults; "off": none */
	WH_SETTING_MEET,
	WH_SETTING_FABRIC, /* text: fabric handles of GPU memory between hosts: "tls", "on", "off"
			    */
	WH_SETTING_CONNECT_TO, /* text: wh_networks_have(); "": any */
	WH_SETTING_INTEGRITY, /* text: checksums of TCP connections, "none" or "crc32c" */
	WH_SETTING_COUNT,
};

#define WH_CONFIG_TEXT 256 /* the longest value and its NUL; paths can be long */

struct wh_config {
	int64_t number[WH_SETTING_COUNT]; /* count, bytes, ms, bool */
	char text[WH_SETTING_COUNT][WH_CONFIG_TEXT];
};

/* Fill from the defaults, the environment and `overrides` ("name=value", NULL-ended, or NULL).
 * 0, or -EINVAL: the error text names the setting and the value. */
int wh_config_load(struct wh_config *config, const char *const *overrides);

/* The enum wh_log_level of "warn", "info" or "debug"; 0: not a level's name. */
uint32_t wh_config_log_level(const char *name);

/* Find the next environment variable WHERRY_... that no setting reads: it is misspelt or belongs to
 * a newer version. The command refuses it and the library logs it, unless WHERRY_IGNORE_UNKNOWN=1.
 * *cursor starts at 0. 1: the variable's name is in `out`, cut to fit, control characters included.
 * 0: there are no more. -EINVAL: WHERRY_IGNORE_UNKNOWN is neither 0 nor 1. */
#define WH_CONFIG_IGNORE "WHERRY_IGNORE_UNKNOWN"
#define WH_CONFIG_VARIABLE 64
int wh_config_unknown(size_t *cursor, char out[WH_CONFIG_VARIABLE]);

/* The directories of this user's files: $XDG_RUNTIME_DIR, $XDG_CACHE_HOME, $HOME. Each is an
 * absolute path, or "". */
struct wh_config_paths {
	char runtime[WH_CONFIG_TEXT], cache[WH_CONFIG_TEXT], home[WH_CONFIG_TEXT];
};
void wh_config_paths(struct wh_config_paths *paths);

/* Mooncake's own variables for its metadata store. "": not set, or too long. */
struct wh_config_mooncake {
	/* $MC_REDIS_USERNAME, $MC_REDIS_PASSWORD */
	char user[WH_CONFIG_TEXT], password[WH_CONFIG_TEXT];
	char database[WH_CONFIG_TEXT]; /* $MC_REDIS_DB_INDEX */
	char cluster[WH_CONFIG_TEXT]; /* $MC_METADATA_CLUSTER_ID */
};
void wh_config_mooncake(struct wh_config_mooncake *out);

#endif
