/* SPDX-License-Identifier: Apache-2.0 */
/* The table of settings, and loading it from defaults, the environment and overrides. */
#include "util/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <wherry/engine.h>

#include "util/address.h"
#include "util/error.h"

#define KIB INT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

struct setting {
	struct wh_config_row row;
	/* The row's type decides which of the two is set. */
	bool (*number)(const char *text, int64_t *out);
	bool (*text)(const char *text);
	int64_t least, most; /* bounds of a number */
	const char *wants; /* for the error; NULL: made from the type and the bounds */
	bool secret; /* errors do not show the value */
};

/* ---- values ------------------------------------------------------------------------------- */

/* Read at least one digit at *text and advance it. False: no digit, a sign, a space or overflow. */
static bool parse_digits(const char **text, int64_t *out)
{
	const char *at = *text;
	int64_t value = 0;

	for (; *at >= '0' && *at <= '9'; at++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, *at - '0', &value))
			return false;
	}
	if (at == *text)
		return false;
	*text = at;
	*out = value;
	return true;
}

struct unit {
	const char *name;
	int64_t factor;
};

static bool parse_units(const char *text, const struct unit *units, int64_t *out)
{
	int64_t value;

	if (!parse_digits(&text, &value))
		return false;
	for (; units->name; units++) {
		if (!strcmp(text, units->name))
			return !__builtin_mul_overflow(value, units->factor, out);
	}
	return false;
}

static bool parse_count(const char *text, int64_t *out)
{
	static const struct unit units[] = { { "", 1 }, { NULL, 0 } };

	return parse_units(text, units, out);
}

static bool parse_bytes(const char *text, int64_t *out)
{
	static const struct unit units[] = {
		{ "", 1 },      { "B", 1 },   { "K", KIB },   { "KiB", KIB }, { "M", MIB },
		{ "MiB", MIB }, { "G", GIB }, { "GiB", GIB }, { NULL, 0 },
	};

	return parse_units(text, units, out);
}

static bool parse_ms(const char *text, int64_t *out)
{
	static const struct unit units[] = {
		{ "", 1 }, { "ms", 1 }, { "s", 1000 }, { "min", 60000 }, { NULL, 0 },
	};

	return parse_units(text, units, out);
}

static bool parse_bool(const char *text, int64_t *out)
{
	static const char *const words[][2] = {
		{ "0", "1" },
		{ "no", "yes" },
		{ "off", "on" },
		{ "false", "true" },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		for (int value = 0; value < 2; value++) {
			if (!strcmp(text, words[i][value])) {
				*out = value;
				return true;
			}
		}
	}
	return false;
}

/* The length of the name at `text`, such as a transport's. */
static size_t word_length(const char *text)
{
	return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_-");
}

static bool check_words(const char *text)
{
	for (;;) {
		size_t length = word_length(text);

		if (!length)
			return false;
		text += length;
		if (!*text)
			return true;
		if (*text++ != ',')
			return false;
	}
}

static bool check_word(const char *text)
{
	return !text[word_length(text)];
}

uint32_t wh_config_log_level(const char *name)
{
	static const char *const names[] = {
		[WH_LOG_WARN] = "warn", [WH_LOG_INFO] = "info", [WH_LOG_DEBUG] = "debug"
	};

	for (uint32_t level = WH_LOG_WARN; level <= WH_LOG_DEBUG; level++)
		if (!strcmp(names[level], name))
			return level;
	return 0;
}

/* A level of the log, or nothing. */
static bool check_integrity(const char *text)
{
	return !strcmp(text, "none") || !strcmp(text, "crc32c");
}

static bool check_fabric(const char *text)
{
	return !strcmp(text, "tls") || !strcmp(text, "on") || !strcmp(text, "off");
}

static bool check_level(const char *text)
{
	return !*text || wh_config_log_level(text);
}

/* Printable characters only: the listener decides whether it is an address. */
static bool check_address(const char *text)
{
	for (const char *c = text; *c; c++) {
		if (*c <= ' ' || *c >= 0x7f)
			return false;
	}
	return *text;
}

/* No control characters: the code that opens the file decides whether it exists. */
static bool check_path(const char *text)
{
	for (const char *c = text; *c; c++) {
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			return false;
	}
	return true;
}

/* Absolute paths with commas between, at most as many as net/meet.h takes. */
static bool check_folders(const char *text)
{
	unsigned count = 0;

	if (!*text || !strcmp(text, "off"))
		return true;
	for (const char *at = text;; at++) {
		if (*at != '/' || ++count > 4)
			return false;
		at += strcspn(at, ",");
		if (!*at)
			return check_path(text);
	}
}

/* A key has 32 bytes: too many to guess. */
static bool check_key(const char *text)
{
	size_t digits = strspn(text, "0123456789abcdefABCDEF");

	return !text[digits] && (!digits || digits == 64);
}

/* ---- the table ---------------------------------------------------------------------------- */

static const struct setting settings[WH_SETTING_COUNT] = {
	[WH_SETTING_TRANSPORTS] = {
		.row = { "transports", "WHERRY_TRANSPORTS", "self,cuda,shm,rdma,tcp", "text",
			 "the transports that may be used, best first" },
		.text = check_words,
		.wants = "names with commas between, such as shm,tcp",
	},
	[WH_SETTING_REQUIRE] = {
		.row = { "require", "WHERRY_REQUIRE", "", "text",
			 "the only transport allowed, or local: no network within a machine; "
			 "others are an error; empty: any" },
		.text = check_word,
		.wants = "the name of one transport, such as shm, or local",
	},
	[WH_SETTING_LISTEN] = {
		.row = { "listen", "WHERRY_LISTEN", "127.0.0.1:0", "text",
			 "address to listen on, ADDRESS:PORT (port 0: any free port), or none" },
		.text = check_address,
		.wants = "ADDRESS:PORT, such as 127.0.0.1:7000 or [::1]:0, or none",
	},
	[WH_SETTING_CONNECTIONS] = {
		.row = { "connections", "WHERRY_CONNECTIONS", "4", "count",
			 "TCP data connections to each peer" },
		.number = parse_count,
		.least = 1,
		.most = 64,
	},
	[WH_SETTING_THREADS] = {
		.row = { "threads", "WHERRY_THREADS", "0", "count",
			 "progress threads; 0: by the number of CPUs and of connections" },
		.number = parse_count,
		.least = 0,
		.most = 256,
	},
	[WH_SETTING_SPIN] = {
		.row = { "spin", "WHERRY_SPIN", "0", "bool",
			 "progress threads and waiters spin; waiters move batches without queue "
			 "or callback" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_TIMEOUT] = {
		.row = { "timeout", "WHERRY_TIMEOUT", "5000", "ms",
			 "a peer that does not answer within this time is lost" },
		.number = parse_ms,
		.least = 10,
		.most = 3600000,
	},
	[WH_SETTING_IDLE] = {
		.row = { "idle", "WHERRY_IDLE", "30000", "ms",
			 "close data connections that are idle for this long" },
		.number = parse_ms,
		.least = 10,
		.most = 86400000,
	},
	[WH_SETTING_INLINE] = {
		.row = { "inline", "WHERRY_INLINE", "1MiB", "bytes",
			 "bytes that a submission may copy or send before it returns" },
		.number = parse_bytes,
		.least = 0,
		.most = GIB,
	},
	[WH_SETTING_SLICE] = {
		.row = { "slice", "WHERRY_SLICE", "1MiB", "bytes",
			 "largest size of one TCP request or RDMA work request" },
		.number = parse_bytes,
		.least = KIB,
		.most = GIB,
	},
	[WH_SETTING_BUFFER] = {
		.row = { "buffer", "WHERRY_BUFFER", "0", "bytes",
			 "size of socket buffers; 0: the system's default, 512KiB on one host" },
		.number = parse_bytes,
		.least = 0,
		.most = 256 * MIB,
	},
	[WH_SETTING_CMA] = {
		.row = { "cma", "WHERRY_CMA", "1", "bool",
			 "shm may use process_vm_readv and process_vm_writev" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_NOTIFICATIONS] = {
		.row = { "notifications", "WHERRY_NOTIFICATIONS", "1024", "count",
			 "notifications that the engine keeps until the program takes them" },
		.number = parse_count,
		.least = 1,
		.most = 65536,
	},
	[WH_SETTING_NOTIFICATION_BYTES] = {
		.row = { "notification_bytes", "WHERRY_NOTIFICATION_BYTES", "16MiB", "bytes",
			 "bytes of the notifications that the engine keeps" },
		.number = parse_bytes,
		.least = 64 * KIB,
		.most = 64 * GIB,
	},
	[WH_SETTING_CUDA] = {
		.row = { "cuda", "WHERRY_CUDA", "", "text",
			 "the CUDA driver's library; empty: libcuda.so.1; off or no: do not use "
			 "GPUs" },
		.text = check_path,
		.wants = "the path of the CUDA driver's library, or off",
	},
	[WH_SETTING_CUFILE] = {
		.row = { "cufile", "WHERRY_CUFILE", "off", "text",
			 "move bytes between files and GPUs by GPUDirect Storage where it is not "
			 "in compatibility mode: off, auto (libcufile.so.0), or the library's "
			 "path" },
		.text = check_path,
		.wants = "off, auto or the path of libcufile",
	},
	[WH_SETTING_PIN] = {
		.row = { "pin", "WHERRY_PIN", "1", "bool",
			 "page-lock regions of host memory that GPUs read or write" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_CTAS] = {
		.row = { "ctas", "WHERRY_CTAS", "0", "count",
			 "CTAs of the gather-scatter kernel; 0: the fewest that reach full speed" },
		.number = parse_count,
		.least = 0,
		.most = 65536,
	},
	[WH_SETTING_MODEL_FIRST] = {
		.row = { "model_first", "WHERRY_MODEL_FIRST", "1", "bool",
			 "a GPU's other kernels, such as a model's, go first: transfers have the "
			 "lowest stream priority and fewer CTAs, and prefer copy engines to a "
			 "kernel that is little faster; 0: the highest, and more" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_GPU_TURNS] = {
		.row = { "gpu_turns", "WHERRY_GPU_TURNS", "2", "count",
			 "turns of a GPU stream in flight before more small batches wait for each "
			 "other to share one; 0: none wait" },
		.number = parse_count,
		.least = 0,
		.most = 64,
	},
	[WH_SETTING_COPY_THREADS] = {
		.row = { "copy_threads", "WHERRY_COPY_THREADS", "0", "count",
			 "threads that copy memory, for self and for shm, at most; 0: one, with "
			 "more than 4 CPUs three for four CPUs" },
		.number = parse_count,
		.least = 0,
		.most = 64,
	},
	[WH_SETTING_COPY_FROM] = {
		.row = { "copy_from", "WHERRY_COPY_FROM", "0", "bytes",
			 "with several batches in flight these threads copy those of so many "
			 "bytes; 0: 1 MiB, with more than 4 CPUs 64 KiB" },
		.number = parse_bytes,
		.least = 0,
		.most = GIB,
	},
	[WH_SETTING_FILE_THREADS] = {
		.row = { "file_threads", "WHERRY_FILE_THREADS", "8", "count",
			 "threads that read and write files, for each file system" },
		.number = parse_count,
		.least = 1,
		.most = 64,
	},
	[WH_SETTING_FILE_COLD] = {
		.row = { "file_cold", "WHERRY_FILE_COLD", "direct", "text",
			 "how bytes of files that are not in the page cache are read: direct "
			 "(io_uring, past the cache), ring (through it), pread" },
		.text = check_words,
		.wants = "direct, ring or pread",
	},
	[WH_SETTING_FILE_WRITES] = {
		.row = { "file_writes", "WHERRY_FILE_WRITES", "cached", "text",
			 "how files are written: cached (through the page cache) or direct (past "
			 "it, by io_uring where it is allowed, as far as memory and file are "
			 "aligned alike)" },
		.text = check_words,
		.wants = "cached or direct",
	},
	[WH_SETTING_FILE_PAGES] = {
		.row = { "file_pages", "WHERRY_FILE_PAGES", "auto", "text",
			 "page-lock a file's pages in the page cache so that GPUs read them: keep "
			 "(until the file is unregistered or changes), once (let go when no batch "
			 "reads them), off, auto (keep, but if threads are faster, only when it "
			 "is read a second time)" },
		.text = check_words,
		.wants = "auto, keep, once or off",
	},
	[WH_SETTING_RDMA] = {
		.row = { "rdma", "WHERRY_RDMA", "", "text",
			 "NICs to use, NAME[:PORT[:GID INDEX]], best first; empty: all; off or "
			 "no: none" },
		.text = check_path,
		.wants = "names of RDMA devices with commas between, such as "
			 "mlx5_0,mlx5_1:1:3, or off",
	},
	[WH_SETTING_RDMA_CONNECTIONS] = {
		.row = { "rdma_connections", "WHERRY_RDMA_CONNECTIONS", "1024", "count",
			 "queue pairs to open to all peers; beyond that the least recently used "
			 "close" },
		.number = parse_count,
		.least = 1,
		.most = 65536,
	},
	[WH_SETTING_RDMA_ANSWERS] = {
		.row = { "rdma_answers", "WHERRY_RDMA_ANSWERS", "4096", "count",
			 "queue pairs to accept from all peers; beyond that idle ones close" },
		.number = parse_count,
		.least = 1,
		.most = 65536,
	},
	[WH_SETTING_RDMA_SL] = {
		.row = { "rdma_sl", "WHERRY_RDMA_SL", "0", "count",
			 "InfiniBand service level" },
		.number = parse_count,
		.least = 0,
		.most = 15,
	},
	[WH_SETTING_RDMA_CLASS] = {
		.row = { "rdma_class", "WHERRY_RDMA_CLASS", "0", "count",
			 "RDMA traffic class; on RoCE the DSCP times four" },
		.number = parse_count,
		.least = 0,
		.most = 255,
	},
	[WH_SETTING_RDMA_GPU] = {
		.row = { "rdma_gpu", "WHERRY_RDMA_GPU", "dmabuf,peermem,staged", "text",
			 "how NICs reach GPU memory, best first: dmabuf, peermem, staged" },
		.text = check_words,
		.wants = "names with commas between, such as peermem,staged",
	},
	[WH_SETTING_RDMA_RELAXED] = {
		.row = { "rdma_relaxed", "WHERRY_RDMA_RELAXED", "1", "bool",
			 "NICs may write received data in any order (PCIe relaxed ordering)" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_VERBS] = {
		.row = { "verbs", "WHERRY_VERBS", "", "text",
			 "the verbs library; empty: libibverbs.so.1" },
		.text = check_path,
		.wants = "the path of libibverbs",
	},
	[WH_SETTING_WINDOW] = {
		.row = { "window", "WHERRY_WINDOW", "driver,dmabuf,rm", "text",
			 "backends of GPU windows, best first: driver, dmabuf, rm, rm-watch, "
			 "staged; or off" },
		.text = check_words,
		.wants = "names with commas between, such as rm,staged",
	},
	[WH_SETTING_KEY] = {
		.row = { "key", "WHERRY_KEY", "", "secret",
			 "the cluster key itself, 64 hex digits; empty: see keyfile" },
		.text = check_key,
		.wants = "64 hex digits, as wherry key make prints them",
		.secret = true,
	},
	[WH_SETTING_KEYFILE] = {
		.row = { "keyfile", "WHERRY_KEYFILE", "", "text",
			 "file with the cluster keys, mode 0600; empty: a key of this user "
			 "only" },
		.text = check_path,
		.wants = "the path of a file that wherry key made",
	},
	[WH_SETTING_REGISTRY] = {
		.row = { "registry", "WHERRY_REGISTRY", "p2p", "text",
			 "where engines find each other by name: http:, etcd: or "
			 "redis://HOST:PORT; p2p: none" },
		.text = check_address,
		.wants = "p2p or a URL such as http://HOST:PORT",
		.secret = true,
	},
	[WH_SETTING_LEASE] = {
		.row = { "lease", "WHERRY_LEASE", "10000", "ms",
			 "an engine that is silent for this long leaves the registry" },
		.number = parse_ms,
		.least = 200,
		.most = 3600000,
	},
	[WH_SETTING_OBSERVE] = {
		.row = { "observe", "WHERRY_OBSERVE", "", "text",
			 "directory of the socket for wherry top; empty: the default; off: "
			 "no socket" },
		.text = check_path,
		.wants = "a directory, or off",
	},
	[WH_SETTING_LOG] = {
		.row = { "log", "WHERRY_LOG", "", "text",
			 "log lines up to a level: warn, info or debug; to stderr, unless the "
			 "program takes them itself" },
		.text = check_level,
		.wants = "warn, info or debug",
	},
	[WH_SETTING_MAX_BUFFERED] = {
		.row = { "max_buffered", "WHERRY_MAX_BUFFERED", "1GiB", "bytes",
			 "most memory that TCP requests from one address may occupy" },
		.number = parse_bytes,
		.least = MIB,
		.most = 1024 * GIB,
	},
	[WH_SETTING_TLS] = {
		.row = { "tls", "WHERRY_TLS", "0", "bool",
			 "TLS 1.3 on all TCP connections, with certificates or else the cluster "
			 "key" },
		.number = parse_bool,
		.least = 0,
		.most = 1,
		.wants = "0 or 1",
	},
	[WH_SETTING_TLS_CERT] = {
		.row = { "tls_cert", "WHERRY_TLS_CERT", "", "text",
			 "tls: PEM file with this engine's certificate, whose CN is its name" },
		.text = check_path,
		.wants = "the path of a PEM file",
	},
	[WH_SETTING_TLS_KEY] = {
		.row = { "tls_key", "WHERRY_TLS_KEY", "", "text",
			 "tls: PEM file with the certificate's private key, mode 0600" },
		.text = check_path,
		.wants = "the path of a PEM file",
	},
	[WH_SETTING_TLS_CA] = {
		.row = { "tls_ca", "WHERRY_TLS_CA", "", "text",
			 "tls: PEM file with the authorities that sign the engines' "
			 "certificates" },
		.text = check_path,
		.wants = "the path of a PEM file",
	},
	[WH_SETTING_MEET] = {
		.row = { "meet", "WHERRY_MEET", "", "text",
			 "folders shared with other containers of this machine; empty: "
			 "XDG_RUNTIME_DIR, /run/wherry, /dev/shm; off: none" },
		.text = check_folders,
		.wants = "one to four absolute paths with commas between, or off",
	},
	[WH_SETTING_FABRIC] = {
		.row = { "fabric", "WHERRY_FABRIC", "tls", "text",
			 "share GPU memory with other machines of the NVLink domain, where NVLink "
			 "carries its bytes unencrypted: tls (send its handles over TLS only), on, "
			 "off" },
		.text = check_fabric,
		.wants = "tls, on or off",
	},
	[WH_SETTING_CONNECT_TO] = {
		.row = { "connect_to", "WHERRY_CONNECT_TO", "", "text",
			 "the networks that engines are connected to in, and no others; empty: "
			 "any" },
		.text = wh_networks_are_valid,
		.wants = "networks with commas between, such as 10.0.0.0/8,fd00::/8",
	},
	[WH_SETTING_INTEGRITY] = {
		.row = { "integrity", "WHERRY_INTEGRITY", "none", "text",
			 "checksums on TCP connections without TLS, against bytes damaged on the "
			 "way" },
		.text = check_integrity,
		.wants = "none or crc32c",
	},
};

const struct wh_config_row *wh_config_row(size_t index)
{
	return index < WH_SETTING_COUNT ? &settings[index].row : NULL;
}

/* ---- loading ------------------------------------------------------------------------------ */

static void format_bytes(char *out, size_t size, int64_t bytes)
{
	static const struct unit units[] = { { "GiB", GIB }, { "MiB", MIB }, { "KiB", KIB } };

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (bytes && bytes % units[i].factor == 0) {
			snprintf(out, size, "%" PRId64 "%s", bytes / units[i].factor,
				 units[i].name);
			return;
		}
	}
	snprintf(out, size, "%" PRId64, bytes);
}

/* `key` is the name that the user gave: the setting's or the environment variable's. */
static int config_refuse(const struct setting *setting, const char *key, const char *value)
{
	char least[32], most[32];

	if (setting->secret)
		return wh_fail(EINVAL, "%s: wants %s; the given value is not shown", key,
			       setting->wants);
	if (setting->wants)
		return wh_fail(EINVAL, "%s=%.64s: wants %s", key, value, setting->wants);
	if (setting->number == parse_bytes) {
		format_bytes(least, sizeof(least), setting->least);
		format_bytes(most, sizeof(most), setting->most);
		return wh_fail(EINVAL, "%s=%.64s: wants a size from %s to %s, such as 64KiB", key,
			       value, least, most);
	}
	return wh_fail(EINVAL, "%s=%.64s: wants %s from %" PRId64 " to %" PRId64, key, value,
		       setting->number == parse_ms ? "milliseconds (or 5s)" : "a number",
		       setting->least, setting->most);
}

static int config_set(struct wh_config *config, size_t index, const char *key, const char *value)
{
	const struct setting *setting = &settings[index];
	size_t length = strlen(value);
	int64_t number = 0;

	if (length >= WH_CONFIG_TEXT)
		return wh_fail(EINVAL, "%s=%.32s...: at most %d bytes", key,
			       setting->secret ? "" : value, WH_CONFIG_TEXT - 1);
	if (setting->text && !setting->text(value))
		return config_refuse(setting, key, value);
	if (setting->number &&
	    (!setting->number(value, &number) || number < setting->least || number > setting->most))
		return config_refuse(setting, key, value);
	memcpy(config->text[index], value, length + 1);
	config->number[index] = number;
	return 0;
}

/* The index of the setting that an override "name=value" names, and its value; -1: none. */
static int config_find(const char *override, const char **value)
{
	const char *sign = strchr(override, '=');

	if (!sign)
		return -1;
	for (int i = 0; i < WH_SETTING_COUNT; i++) {
		const char *name = settings[i].row.name;

		if (strlen(name) == (size_t)(sign - override) &&
		    !memcmp(name, override, strlen(name))) {
			*value = sign + 1;
			return i;
		}
	}
	return -1;
}

int wh_config_load(struct wh_config *config, const char *const *overrides)
{
	bool given[WH_SETTING_COUNT] = { false };
	struct wh_config got = { 0 };
	const char *value;
	int rc;

	for (size_t i = 0; overrides && overrides[i]; i++) {
		int index = config_find(overrides[i], &value);

		if (index < 0)
			return wh_fail(EINVAL,
				       "unknown setting \"%.*s\": wants name=value; wherry config "
				       "lists the settings",
				       /* the value may be a secret */
				       (int)strcspn(overrides[i], "="), overrides[i]);
		rc = config_set(&got, (size_t)index, settings[index].row.name, value);
		if (rc)
			return rc;
		given[index] = true;
	}
	for (size_t i = 0; i < WH_SETTING_COUNT; i++) {
		const struct wh_config_row *row = &settings[i].row;

		if (given[i])
			continue;
		/* An empty variable counts as unset. A set-user-id program trusts no variable. */
		value = secure_getenv(row->environment);
		if (value && *value)
			rc = config_set(&got, i, row->environment, value);
		else
			rc = config_set(&got, i, row->name, row->fallback);
		if (rc)
			return rc;
	}
	*config = got;
	return 0;
}

/* ---- variables that belong to no setting ---------------------------------------------------- */

#define PREFIX "WHERRY_"

/* Read elsewhere: by wh_config_unknown() itself; the next two by the Python package; one by the
 * plug-in for NIXL; the last one by tests/integration/command/mooncake-real.sh. */
static const char *const other_variables[] = {
	WH_CONFIG_IGNORE,      "WHERRY_LIBRARY",     "WHERRY_MOONCAKE_LIBRARY",
	"WHERRY_NIXL_VERSION", "WHERRY_TEST_WHEELS",
};

static bool variable_is_known(const char *name, size_t length)
{
	for (size_t i = 0;
	     i < WH_SETTING_COUNT + sizeof(other_variables) / sizeof(*other_variables); i++) {
		const char *known = i < WH_SETTING_COUNT ? settings[i].row.environment :
							   other_variables[i - WH_SETTING_COUNT];

		if (strlen(known) == length && !memcmp(known, name, length))
			return true;
	}
	return false;
}

int wh_config_unknown(size_t *cursor, char out[WH_CONFIG_VARIABLE])
{
	const char *ignore = secure_getenv(WH_CONFIG_IGNORE);
	int64_t ignored = 0;

	if (ignore && *ignore && !parse_bool(ignore, &ignored))
		return wh_fail(EINVAL, WH_CONFIG_IGNORE "=%.64s: wants 0 or 1", ignore);
	/* A set-user-id program reads no variable, so none is misspelt. */
	if (ignored || getauxval(AT_SECURE))
		return 0;
	for (; environ && environ[*cursor]; ++*cursor) {
		const char *variable = environ[*cursor];
		size_t length = strcspn(variable, "=");

		/* An empty variable counts as unset. */
		if (strncmp(variable, PREFIX, strlen(PREFIX)) != 0 || !variable[length] ||
		    !variable[length + 1] || variable_is_known(variable, length))
			continue;
		/* The name alone: the value may be a secret. */
		snprintf(out, WH_CONFIG_VARIABLE, "%.*s",
			 length < WH_CONFIG_VARIABLE ? (int)length : WH_CONFIG_VARIABLE - 1,
			 variable);
		++*cursor;
		return 1;
	}
	return 0;
}

/* ---- variables of other programs ------------------------------------------------------------ */

static void variable_text(char out[WH_CONFIG_TEXT], const char *variable)
{
	const char *value = secure_getenv(variable);

	out[0] = '\0';
	if (value && strlen(value) < WH_CONFIG_TEXT)
		memcpy(out, value, strlen(value) + 1);
}

static void variable_path(char out[WH_CONFIG_TEXT], const char *variable)
{
	variable_text(out, variable);
	if (*out != '/')
		out[0] = '\0';
}

void wh_config_paths(struct wh_config_paths *paths)
{
	variable_path(paths->runtime, "XDG_RUNTIME_DIR");
	variable_path(paths->cache, "XDG_CACHE_HOME");
	variable_path(paths->home, "HOME");
}

void wh_config_mooncake(struct wh_config_mooncake *out)
{
	variable_text(out->user, "MC_REDIS_USERNAME");
	variable_text(out->password, "MC_REDIS_PASSWORD");
	variable_text(out->database, "MC_REDIS_DB_INDEX");
	variable_text(out->cluster, "MC_METADATA_CLUSTER_ID");
}
