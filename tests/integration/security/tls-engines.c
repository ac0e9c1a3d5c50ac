/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: no-threads-target */
/* tls-engines.c: TLS between engines: with the cluster key, with certificates, and with refused
 * keys and certificates */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "lib/fixture.h"
#include "lib/raw.h"

#define OTHER_KEY "key=6f74686572206b65792c206f74686572206b65792c206f74686572206b65792c"
#define LENGTH (3 * MIB + 12345)

static _Atomic unsigned warnings;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char logged[4096];
static char directory[] = "/tmp/wherry-tls-XXXXXX";

static void keep_line(void *arg, const struct wh_log_record *record)
{
	(void)arg;
	if (getenv("TESTS_LOG"))
		fprintf(stderr, "%s\n", record->text);
	if (record->level == WH_LOG_WARN)
		warnings++;
	pthread_mutex_lock(&log_lock);
	snprintf(logged + strlen(logged), sizeof(logged) - strlen(logged), "%s\n", record->text);
	pthread_mutex_unlock(&log_lock);
}

/* True if the log contains both texts, within PATIENCE. */
static bool has_logged(const char *one, const char *other)
{
	bool found = false;

	for (int64_t until = now() + PATIENCE; !found && now() < until; sleep_ms(10)) {
		pthread_mutex_lock(&log_lock);
		found = strstr(logged, one) && strstr(logged, other);
		pthread_mutex_unlock(&log_lock);
	}
	return found;
}

/* ---- with the cluster key -------------------------------------------------------------------- */

struct pair {
	struct wh_engine *owner, *initiator;
	struct wh_region *target, *local;
	unsigned char *pages;
	struct wh_peer *peer;
	struct wh_remote remote;
};

static struct wh_engine *open_with(const char *name, const char *const *config)
{
	struct wh_engine_options options = {
		.size = sizeof(options), .name = name, .config = config, .log = keep_line
	};
	struct wh_engine *engine;

	want(0, wh_engine_open(&options, &engine));
	return engine;
}

/* A NIC is here, and TLS keeps it from being used: each engine warns once. Without TLS none does.
 */
static void warning__rdma_is_not_used(void **state)
{
	static const char *const settings[] = { "tls=1", "tls=0" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const char *const config[] = { settings[i], NULL };
		struct wh_engine *engine;

		warnings = 0;
		*logged = 0;
		engine = open_with("warns", config);
		want_true(warnings == (i == 0), "%s: %u warnings: %s", settings[i], warnings,
			  logged);
		want_true(!strstr(logged, "tls is on and rdma does not encrypt, so rdma is not "
					  "used: bytes go by TCP") == (i == 1),
			  "%s: %s", settings[i], logged);
		want(0, wh_engine_close(engine));
	}
}

static void pair_open(struct pair *p, const char *const *owner, const char *const *initiator)
{
	struct wh_region_options named = { .size = sizeof(named),
					   .name = "target",
					   .access = ACCESS_BOTH };

	p->owner = open_with("claimed", owner);
	p->initiator = open_with("also-claimed", initiator);
	p->pages = pages_new(4 * LENGTH);
	want(0, wh_region_register(p->owner, p->pages, LENGTH, &named, &p->target));
	named.name = NULL;
	want(0, wh_region_register(p->initiator, p->pages + LENGTH, 3 * LENGTH, &named, &p->local));
	want(0, wh_peer_open(p->initiator, wh_engine_url(p->owner), NULL, &p->peer));
	want(0, wh_peer_find(p->peer, "target", PATIENCE, &p->remote));
}

static void pair_close(struct pair *p)
{
	want(0, wh_peer_close(p->peer));
	want(0, wh_region_unregister(p->local));
	want(0, wh_region_unregister(p->target));
	pages_free(p->pages, 4 * LENGTH);
	want(0, wh_engine_close(p->initiator));
	want(0, wh_engine_close(p->owner));
}

/* The explanation of a batch that goes by TCP for that reason repeats the warning. */
static void warning__in_the_explanation(void **state)
{
	static const char *const settings[] = { "tls=1", "tls=0" };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		const char *const config[] = { settings[i], "transports=rdma,tcp", NULL };
		struct wh_transfer transfer = { .length = LENGTH, .op = WH_WRITE };
		struct wh_batch *batch;
		char text[2048];
		struct pair p;

		pair_open(&p, config, config);
		transfer.local = p.local;
		transfer.remote = p.remote.id;
		want(0, wh_batch_new(p.peer, NULL, &batch));
		want(0, wh_batch_add(batch, &transfer, 1));
		want(0, wh_batch_submit(batch));
		want(0, wh_batch_wait_for(batch, PATIENCE));
		want(0, wh_batch_status(batch));
		want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
		want_true(!strstr(text, "warning: the setting tls is on and rdma does not encrypt, "
					"so rdma is not used: bytes go by TCP") == (i == 1),
			  "%s: %s", settings[i], text);
		want(0, wh_batch_free(batch));
		pair_close(&p);
	}
}

/* Run `count` transfers of `length` bytes: `step` apart at the target, contiguous on our side. */
static void move_many(struct pair *p, uint32_t op, uint64_t local, size_t count, uint64_t length,
		      uint64_t step)
{
	struct wh_transfer *transfers = calloc(count, sizeof(*transfers));
	char text[1024];
	struct wh_batch *batch;

	for (size_t i = 0; i < count; i++)
		transfers[i] = (struct wh_transfer){ .local = p->local,
						     .local_offset = local + i * length,
						     .remote = p->remote.id,
						     .remote_offset = i * step,
						     .length = length,
						     .op = op };
	want(0, wh_batch_new(p->peer, NULL, &batch));
	want(0, wh_batch_add(batch, transfers, count));
	want(0, wh_batch_submit(batch));
	want(0, batch_end(batch, PATIENCE));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	/* The lab's kernel has TLS. */
	want_true(strstr(text, getenv("TEST_KERNEL_TLS") ? "kernel TLS 1.3, AES_128_GCM)" :
							   "encrypted: TLS 1.3, AES_128_GCM)"),
		  "it says: %s", text);
	if (getenv("TEST_KERNEL_TLS") && op == WH_WRITE && length == LENGTH)
		printf("%s", text);
	want(0, wh_batch_free(batch));
	free(transfers);
}

/* Write bytes and read them back: the whole region, blocks that do not fit into TLS records, and
 * single bytes. */
static void there_and_back(struct pair *p)
{
	static const uint64_t lengths[] = { LENGTH, 100000, 16384, 4099, 1 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint64_t length = lengths[i], step = length < LENGTH ? length + 77 : length;
		size_t count = (LENGTH - length) / step + 1;

		count = count < 2000 ? count : 2000;
		hidden_begin();
		memset(p->pages, 0, LENGTH);
		pattern_fill(p->pages + LENGTH, count * length, 0, i);
		hidden_end();
		move_many(p, WH_WRITE, 0, count, length, step);
		move_many(p, WH_READ, LENGTH, count, length, step);
		hidden_begin();
		want_true(pattern_check(p->pages + 2 * LENGTH, count * length, 0, i) ==
				  PATTERN_GOOD,
			  "other bytes have come back, %zu times %llu", count,
			  (unsigned long long)length);
		want_true(pattern_check(p->pages, length, 0, i) == PATTERN_GOOD, "other bytes");
		hidden_end();
	}
}

static void key__moves_bytes(void **state)
{
	static const char *const config[] = { SHARED_KEY, "tls=1", "require=tcp", NULL };
	static const char *const one[] = { SHARED_KEY,      "tls=1",        "require=tcp",
					   "connections=1", "buffer=64KiB", NULL };
	struct pair p;

	(void)state;
	pair_open(&p, config, config);
	there_and_back(&p);
	pair_close(&p);
	/* Sockets that accept few bytes at a time. */
	pair_open(&p, one, one);
	there_and_back(&p);
	pair_close(&p);
}

/* The user's own key works as well, and waiters that spin. */
static void key__own(void **state)
{
	static const char *const config[] = { "tls=1", "require=tcp", "spin=1", NULL };
	struct pair p;

	(void)state;
	pair_open(&p, config, config);
	there_and_back(&p);
	pair_close(&p);
}

static int peer_open(struct wh_engine *initiator, struct wh_engine *owner)
{
	struct wh_peer *peer;
	int error = wh_peer_open(initiator, wh_engine_url(owner), NULL, &peer);

	if (!error)
		want(0, wh_peer_close(peer));
	return error;
}

/* Engines with another key, or without TLS: both sides report it, and nothing hangs. */
static void key__refused(void **state)
{
	static const char *const good[] = { SHARED_KEY, "tls=1", NULL };
	static const char *const other[] = { OTHER_KEY, "tls=1", NULL };
	static const char *const plain[] = { SHARED_KEY, NULL };
	struct wh_engine *a = open_with("a", good), *b = open_with("b", other),
			 *c = open_with("c", plain);

	(void)state;
	want_text(-EACCES, "does not know this engine's key", peer_open(b, a));
	want_text(-EACCES, "does not know this engine's key", peer_open(a, b));
	want_text(-EPROTO, "speaks TLS only", peer_open(c, a));
	want_text(-EPROTO, "does not speak TLS", peer_open(a, c));
	want(0, wh_engine_close(a));
	want(0, wh_engine_close(b));
	want(0, wh_engine_close(c));
}

/* Keys are rotated as without TLS. */
static void key__rotation(void **state)
{
	static const char text[] =
		"6b65792066726f6d2074686520746573747320206b65792066726f6d20746865\n"
		"6f74686572206b65792c206f74686572206b65792c206f74686572206b65792c\n";
	static const char *const old[] = { SHARED_KEY, "tls=1", NULL };
	static const char *const next[] = { OTHER_KEY, "tls=1", NULL };
	char path[64], setting[80];
	const char *const both[] = { setting, "tls=1", NULL };
	struct wh_engine *a, *b, *c;
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "/tmp/wherry-tls-key-%d", (int)getpid());
	snprintf(setting, sizeof(setting), "keyfile=%s", path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	want(sizeof(text) - 1, write(fd, text, sizeof(text) - 1));
	close(fd);
	a = open_with("a", old);
	b = open_with("b", both);
	c = open_with("c", next);
	unlink(path);
	want(0, peer_open(a, b));
	want(0, peer_open(b, a));
	want(-EACCES, peer_open(c, b));
	want(-EACCES, peer_open(b, c));
	want(0, wh_engine_close(a));
	want(0, wh_engine_close(b));
	want(0, wh_engine_close(c));
}

/* ---- with certificates ----------------------------------------------------------------------- */

static const char make_them[] =
	"set -e; cd %s; exec >out 2>&1\n"
	"key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $1.key; chmod "
	"600 $1.key; }\n"
	"authority() { key $1; openssl req -x509 -new -key $1.key -subj /CN=$1 -days 2 -out "
	"$1.pem; }\n"
	"sign() { key $1; openssl req -new -key $1.key -subj \"$3\" -out $1.csr;\n"
	"openssl x509 -req -in $1.csr -CA $2.pem -CAkey $2.key -CAcreateserial -days $4 -out "
	"$1.pem; }\n"
	"authority cluster; authority stranger\n"
	"sign north cluster /CN=north 1; sign south cluster /CN=south 1; sign eve stranger /CN=eve "
	"1\n"
	"openssl pkey -in north.key -aes128 -passout pass:sesame -out locked.key; cp north.pem "
	"locked.pem\n"
	"openssl ec -in north.key -aes128 -passout pass:sesame -out older.key; cp north.pem "
	"older.pem\n"
	"chmod 600 locked.key older.key\n"
	"sign late cluster /CN=late -1; sign nameless cluster /O=nobody 1\n"
	"key lone; openssl req -x509 -new -key lone.key -subj /CN=lone -days 1 -out lone.pem\n";

static int make_certificates(void **state)
{
	char command[4096];

	(void)state;
	if (!mkdtemp(directory))
		return -1;
	snprintf(command, sizeof(command), make_them, directory);
	return system(command); /* NOLINT(cert-env33-c): the command is a constant */
}

static int remove_certificates(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -r %s", directory);
	return system(command); /* NOLINT(cert-env33-c) */
}

/* The settings of an engine with this certificate. */
struct settings {
	char text[3][96];
	const char *list[6];
};

static const char *const *settings_of(struct settings *settings, const char *name, const char *ca)
{
	snprintf(settings->text[0], sizeof(settings->text[0]), "tls_cert=%s/%s.pem", directory,
		 name);
	snprintf(settings->text[1], sizeof(settings->text[1]), "tls_key=%s/%s.key", directory,
		 name);
	snprintf(settings->text[2], sizeof(settings->text[2]), "tls_ca=%s/%s.pem", directory, ca);
	settings->list[0] = "tls=1";
	settings->list[1] = "require=tcp";
	for (int i = 0; i < 3; i++)
		settings->list[2 + i] = settings->text[i];
	settings->list[5] = NULL;
	return settings->list;
}

/* Without any key. Peers are named by their certificates, whatever name they claim. */
static void certificate__moves_bytes(void **state)
{
	struct wh_grant grant = { "south", WH_ACCESS_READ, 0 };
	struct wh_region_options options = {
		.size = sizeof(options), .name = "for-south", .grants = &grant, .grant_count = 1
	};
	struct wh_peer_info info = { .size = sizeof(info) };
	struct wh_region *region;
	struct wh_remote remote;
	struct settings north = { 0 }, south = { 0 };
	struct pair p;

	(void)state;
	pair_open(&p, settings_of(&north, "north", "cluster"),
		  settings_of(&south, "south", "cluster"));
	want(0, wh_peer_info(p.peer, &info));
	assert_string_equal(info.name, "north");
	there_and_back(&p);
	want(0, wh_region_register(p.owner, p.pages, LENGTH, &options, &region));
	want(0, wh_peer_find(p.peer, "for-south", PATIENCE, &remote));
	want(WH_ACCESS_READ, remote.access);
	want(0, wh_region_unregister(region));
	grant.peer = "also-claimed";
	options.name = "for-a-claim";
	want(0, wh_region_register(p.owner, p.pages, LENGTH, &options, &region));
	options.grants = NULL;
	options.grant_count = 0;
	want(0, wh_region_unregister(region));
	options.name = "last";
	options.access = ACCESS_BOTH;
	want(0, wh_region_register(p.owner, p.pages, LENGTH, &options, &region));
	want(0, wh_peer_find(p.peer, "last", PATIENCE, &remote));
	want(-ENOENT, wh_peer_find(p.peer, "for-a-claim", WH_ANSWER, &remote));
	want(0, wh_region_unregister(region));
	pair_close(&p);
}

/* Each side logs or reports one line, which names the certificate and what is wrong with it. */
static void certificate_refused(const char *name, const char *ca, const char *why_initiator,
				const char *name_in_log, const char *why_log,
				const char *why_reached)
{
	struct settings good = { 0 }, bad = { 0 };
	struct wh_engine *north = open_with("a", settings_of(&good, "north", "cluster"));
	struct wh_engine *other = open_with("b", settings_of(&bad, name, ca));

	pthread_mutex_lock(&log_lock);
	logged[0] = '\0';
	pthread_mutex_unlock(&log_lock);
	want_text(-EACCES, why_initiator, peer_open(other, north));
	want_true(strstr(wh_error_text(), ".pem") && !strchr(wh_error_text(), '\n'), "it says: %s",
		  wh_error_text());
	want_true(has_logged(name_in_log, why_log), "it logs: %s", logged);
	want_text(-EACCES, why_reached, peer_open(north, other));
	want_true(strstr(wh_error_text(), name_in_log), "it says: %s", wh_error_text());
	want(0, wh_engine_close(other));
	want(0, wh_engine_close(north));
}

static void certificate__expired(void **state)
{
	(void)state;
	certificate_refused("late", "cluster", "certificate expired", "\"late\"",
			    "certificate has expired", "certificate has expired");
}

static void certificate__of_another_authority(void **state)
{
	(void)state;
	certificate_refused("eve", "cluster", "unknown ca", "\"eve\"",
			    "unable to get local issuer certificate",
			    "unable to get local issuer certificate");
}

static void certificate__self_signed(void **state)
{
	(void)state;
	certificate_refused("lone", "cluster", "unknown ca", "\"lone\"", "self-signed certificate",
			    "self-signed certificate");
}

/* A certificate without a common name is refused, and so is a peer with a key but no certificate.
 */
static void certificate__nobody(void **state)
{
	static const char *const key[] = { SHARED_KEY, "tls=1", NULL };
	struct settings good = { 0 }, bad = { 0 };
	struct wh_engine *north = open_with("a", settings_of(&good, "north", "cluster"));
	struct wh_engine *nobody = open_with("b", settings_of(&bad, "nameless", "cluster"));
	struct wh_engine *keyed = open_with("c", key);

	(void)state;
	want_text(-EACCES, "no common name", peer_open(north, nobody));
	want_true(peer_open(nobody, north) < 0, "nobody is let in");
	want_true(peer_open(keyed, north) < 0, "who has no certificate is let in");
	want_true(peer_open(north, keyed) < 0, "it reaches who has no certificate");
	want(0, wh_engine_close(keyed));
	want(0, wh_engine_close(nobody));
	want(0, wh_engine_close(north));
}

static void want_not_opened(const char *const *config, int error, const char *word)
{
	struct wh_engine_options options = { .size = sizeof(options), .config = config };
	struct wh_engine *engine;

	want_text(error, word, wh_engine_open(&options, &engine));
}

static void certificate__bad_files(void **state)
{
	struct settings settings = { 0 };
	char path[64];

	(void)state;
	settings_of(&settings, "north", "cluster");
	settings.list[4] = NULL;
	want_not_opened(settings.list, -EINVAL, "tls_ca is not set");
	settings_of(&settings, "missing", "cluster");
	want_not_opened(settings.list, -ENOENT, "missing.key");
	settings_of(&settings, "north", "missing");
	want_not_opened(settings.list, -ENOENT, "tls_ca=");
	settings_of(&settings, "north", "cluster");
	snprintf(settings.text[1], sizeof(settings.text[1]), "tls_key=%s/south.key", directory);
	want_not_opened(settings.list, -EINVAL, "private key of tls_cert");
	snprintf(settings.text[0], sizeof(settings.text[0]), "tls_cert=%s/north.key", directory);
	want_not_opened(settings.list, -EINVAL, "tls_cert=");
	snprintf(path, sizeof(path), "%s/north.key", directory);
	want(0, chmod(path, 0644));
	settings_of(&settings, "north", "cluster");
	want_not_opened(settings.list, -EACCES, "chmod 600");
	want(0, chmod(path, 0600));
}

/* Nothing asks for the password: neither on the terminal nor from standard input. */
static void certificate__key_with_a_password(void **state)
{
	static const char *const names[] = { "locked", "older" };
	struct settings settings = { 0 };
	int ends[2], input = dup(STDIN_FILENO);

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		char left[16] = "";

		want(0, pipe(ends));
		want(7, write(ends[1], "sesame\n", 7));
		close(ends[1]);
		want(STDIN_FILENO, dup2(ends[0], STDIN_FILENO));
		close(ends[0]);
		want_not_opened(settings_of(&settings, names[i], "cluster"), -EINVAL,
				"is encrypted with a password");
		want_true(strstr(wh_error_text(), names[i]) && !strchr(wh_error_text(), '\n'),
			  "it says: %s", wh_error_text());
		want(7, read(STDIN_FILENO, left, sizeof(left)));
		dup2(input, STDIN_FILENO);
	}
	close(input);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* Bytes that are not TLS, or only begin like it; other engines are served meanwhile. */
static void stranger__bytes(void **state)
{
	static const char *const config[] = { SHARED_KEY, "tls=1", "timeout=2s", NULL };
	struct wh_engine *owner = open_with("a", config), *good = open_with("b", config);
	unsigned char bytes[600];

	(void)state;
	for (unsigned i = 0; i < 40; i++) {
		int fd = raw_connect(wh_engine_url(owner));

		want_true(fd >= 0, "no connection");
		pattern_fill(bytes, sizeof(bytes), 0, i);
		bytes[0] = i % 2 ? 22 : bytes[0];
		bytes[1] = 3;
		bytes[2] = 1;
		bytes[3] = i % 3 ? 0 : bytes[3];
		send_all(fd, bytes, 1 + i * 14);
		if (i % 4)
			shutdown(fd, SHUT_WR);
		want_true(raw_closes(fd, SCALE(20000, 60000)), "%u: it is still open", i);
		close(fd);
	}
	want(0, peer_open(good, owner));
	want(0, wh_engine_close(good));
	want(0, wh_engine_close(owner));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(key__moves_bytes),
		TEST(key__own),
		TEST(key__refused),
		TEST(key__rotation),
		TEST(certificate__moves_bytes),
		TEST(certificate__expired),
		TEST(certificate__of_another_authority),
		TEST(certificate__self_signed),
		TEST(certificate__nobody),
		TEST(certificate__bad_files),
		TEST(certificate__key_with_a_password),
		TEST(stranger__bytes),
		TEST_OVER(warning__rdma_is_not_used, rdma),
		TEST_OVER(warning__in_the_explanation, rdma),
	};
	const bool child = argc > 1 && !strcmp(argv[1], "--child");
	int status;

	if (!child && make_certificates(NULL))
		return 1;
	status = harness_main(argc, argv, "tls-engines", tests, sizeof(tests) / sizeof(*tests));
	if (!child)
		remove_certificates(NULL);
	return status;
}
