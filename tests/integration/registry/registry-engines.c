/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: registry command bench-many slow */
/* registry-engines.c: engines that find each other in registries: real servers, which are killed
 * and restarted */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "lib/fixture.h"
#include "lib/proxy.h"
#include "lib/server.h"

/* Renewed three times as often: a lease must outlast the time in which an engine gets no CPU. */
#define LEASE_MS SCALE(800, 2400)
#define LEASE SCALE("lease=800", "lease=2400")
#define LENGTH (64 * KIB)
/* ns: longer than a lease, also as etcd rounds it up */
#define ENDED PATIENCE

/* What all engines have logged, each from several threads. */
static char logged[1 << 16];
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_line(void *arg, const struct wh_log_record *record)
{
	size_t used;

	(void)arg;
	pthread_mutex_lock(&log_lock);
	used = strlen(logged);
	snprintf(logged + used, sizeof(logged) - used, "%s\n", record->text);
	pthread_mutex_unlock(&log_lock);
	if (getenv("TESTS_LOG"))
		fprintf(stderr, "engine: %s\n", record->text);
}

static void forget_lines(void)
{
	pthread_mutex_lock(&log_lock);
	logged[0] = '\0';
	pthread_mutex_unlock(&log_lock);
}

/* True if the log contains `text`; "": if it contains anything. */
static bool was_logged(const char *text)
{
	bool found;

	pthread_mutex_lock(&log_lock);
	found = *logged && strstr(logged, text);
	pthread_mutex_unlock(&log_lock);
	return found;
}

static int open_engine_for(const struct server *server, const char *name, const char *lease,
			   struct wh_engine **out)
{
	const char *const config[] = { lease, "timeout=2000", NULL };
	struct wh_engine_options options = {
		.size = sizeof(options),
		.name = name,
		.listen = name ? "127.0.0.1:0" : "none",
		.registry = server->url,
		.config = config,
		.log = keep_line,
	};

	return wh_engine_open(&options, out);
}

static int open_engine(const struct server *server, const char *name, struct wh_engine **out)
{
	return open_engine_for(server, name, LEASE, out);
}

static struct child *start_node_for(const struct server *server, const char *name,
				    const char *lease)
{
	const struct child_options options = {
		.listen = "127.0.0.1:0",
		.name = name,
		.config = { server->setting, lease },
	};

	return child_start(&options);
}

static struct child *start_node(const struct server *server, const char *name)
{
	return start_node_for(server, name, LEASE);
}

static uint64_t epoch_of(struct wh_peer *peer)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(peer, &info));
	return info.epoch;
}

static uint32_t state_of(struct wh_peer *peer)
{
	struct wh_peer_info info = { .size = sizeof(info) };

	want(0, wh_peer_info(peer, &info));
	return info.state;
}

/* Open a peer by its name, within `patience` (ns). */
static struct wh_peer *open_peer(struct wh_engine *engine, const char *url, int64_t patience)
{
	int64_t end = now() + patience;
	struct wh_peer *peer;
	int error;

	while ((error = wh_peer_open(engine, url, NULL, &peer)) != 0 && now() < end)
		sleep_ms(20);
	want(0, error);
	return peer;
}

static void move_some(struct wh_engine *engine, struct wh_peer *peer, unsigned char seed)
{
	static unsigned char bytes[LENGTH];
	struct wh_batch_options options = { .size = sizeof(options) };
	struct wh_region *region;
	struct wh_remote remote;
	struct wh_batch *batch;

	memset(bytes, seed, sizeof(bytes));
	want(0, wh_region_register(engine, bytes, sizeof(bytes), NULL, &region));
	want(0, wh_peer_find(peer, "target", PATIENCE, &remote));
	want(0, wh_batch_new(peer, &options, &batch));
	want(0, wh_batch_add(batch,
			     &(struct wh_transfer){ .op = WH_WRITE,
						    .local = region,
						    .remote = remote.id,
						    .length = LENGTH },
			     1));
	want(0, batch_run(batch));
	want(0, wh_batch_free(batch));
	want(0, wh_region_unregister(region));
}

/* ---- names ----------------------------------------------------------------------------------- */

/* A name leads to its engine, which moves bytes; when the engine has closed, the name is free. */
static void name__found_and_given_back(void **state)
{
	struct server server;
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct child *child;
	int memory;

	server_start(&server, *state, NULL);
	child = start_node(&server, "node7");
	memory = child_memory(child, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	want(0, open_engine(&server, NULL, &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	want_true(epoch_of(peer) == child->epoch, "another engine");
	move_some(engine, peer, 1);
	want(0, wh_peer_close(peer));
	peer = open_peer(engine, "node7", 0);
	want(0, wh_peer_close(peer));
	want_text(-ENOENT, "\"node8\"", wh_peer_open(engine, "wherry://node8", NULL, &peer));
	child_exit(child);
	want_text(-ENOENT, "\"node7\"", wh_peer_open(engine, "wherry://node7", NULL, &peer));
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* Leases are renewed: a live engine keeps its name for longer than one lease. */
static void name__taken(void **state)
{
	struct server server;
	struct wh_engine *engine = NULL;
	struct wh_peer *peer;
	struct child *child;

	forget_lines();
	server_start(&server, *state, NULL);
	child = start_node(&server, "node7");
	want_text(-EEXIST, "the name \"node7\" is taken", open_engine(&server, "node7", &engine));
	want_true(!engine, "it was given all the same");
	want_true(!was_logged("taking the name over"), "%s", logged);
	sleep_ms(2 * LEASE_MS);
	want(0, open_engine(&server, "node8", &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	want_true(epoch_of(peer) == child->epoch, "another engine has it");
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	child_exit(child);
	server_stop(&server);
}

/* Engines without names do not disturb each other. */
static void name__not_given(void **state)
{
	struct wh_engine *engines[2];
	struct server server;

	server_start(&server, *state, NULL);
	for (int i = 0; i < 2; i++)
		want(0,
		     wh_engine_open(
			     &(struct wh_engine_options){ .size = sizeof(struct wh_engine_options),
							  .listen = "127.0.0.1:0",
							  .registry = server.url },
			     &engines[i]));
	want(0, wh_engine_close(engines[0]));
	want(0, wh_engine_close(engines[1]));
	server_stop(&server);
}

/* An engine is killed and another one gets its name. A connected peer learns that it is another
 * engine, although nothing ever answers at the old address again. */
static void killed__name_goes_to_another(void **state)
{
	struct server server;
	struct wh_engine *engine;
	struct wh_peer *peer, *again;
	struct child *child;
	const int gone = *state == &server_plain ? -ECONNREFUSED : -ENOENT;
	int64_t end;

	server_start(&server, *state, NULL);
	child = start_node(&server, "node7");
	want(0, open_engine(&server, NULL, &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	child_kill(child);
	child = start_node(&server, "node7");
	end = now() + ENDED;
	while (state_of(peer) != WH_PEER_STALE && now() < end)
		sleep_ms(5);
	want(WH_PEER_STALE, state_of(peer));
	again = open_peer(engine, "wherry://node7", ENDED);
	want_true(epoch_of(again) == child->epoch, "not the new one");
	want_true(epoch_of(peer) != child->epoch, "the old one cannot have become the new one");
	want(0, wh_peer_close(peer));
	want(0, wh_peer_close(again));
	child_kill(child);
	/* Without leases a server keeps dead engines, and only connecting shows that they are dead.
	 */
	end = now() + ENDED;
	while (wh_peer_open(engine, "wherry://node7", NULL, &peer) != gone && now() < end)
		sleep_ms(50);
	want_text(gone, "node7", wh_peer_open(engine, "wherry://node7", NULL, &peer));
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* The lease of a killed engine still runs, but its process has ended on this host: its name goes to
 * another at once. */
static void killed__lease_not_waited_for(void **state)
{
	struct wh_engine *engine = NULL;
	struct wh_peer *peer;
	struct server server;
	struct child *child;
	int64_t begun;

	forget_lines();
	server_start(&server, *state, NULL);
	child = start_node_for(&server, "node7", "lease=60000");
	child_kill(child);
	begun = now();
	want(0, open_engine_for(&server, "node7", "lease=60000", &engine));
	want_true(now() - begun < 30 * SECOND, "the lease was waited for");
	want_true(was_logged("taking the name over"), "%s", logged);
	peer = open_peer(engine, "wherry://node7", 0);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* ---- the registry goes away ------------------------------------------------------------------ */

static void registry__killed_and_started_again(void **state)
{
	struct server server;
	struct wh_engine *engine, *other;
	struct wh_peer *peer, *again;
	struct child *child;
	int64_t begun;
	int memory;

	forget_lines();
	server_start(&server, *state, NULL);
	child = start_node(&server, "node7");
	memory = child_memory(child, WH_MEMORY_PAGEABLE, LENGTH);
	child_region(child, memory, 0, LENGTH, "target", ACCESS_BOTH, NULL);
	want(0, open_engine(&server, "node8", &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	move_some(engine, peer, 1);
	server_kill(&server);
	/* Longer than the lease: connected peers notice nothing. */
	for (int i = 0; i < 15; i++) {
		move_some(engine, peer, (unsigned char)i);
		sleep_ms(100);
	}
	want(WH_PEER_CONNECTED, state_of(peer));
	begun = now();
	want_true(wh_peer_open(engine, "wherry://node7", NULL, &again) < 0, "who has said so?");
	want_true(now() - begun < PATIENCE, "it took %lld ms", (long long)((now() - begun) / MS));
	want_true(strstr(wh_error_text(), "registry"), "it says: %s", wh_error_text());
	want_true(open_engine(&server, "node9", &other) < 0, "an engine has registered nowhere");
	server_again(&server);
	again = open_peer(engine, "wherry://node7", ENDED);
	want_true(epoch_of(again) == child->epoch, "another engine");
	want(0, wh_peer_close(again));
	/* Our engine is found by its own name as well. */
	again = open_peer(engine, "wherry://node8", ENDED);
	want(0, wh_peer_close(again));
	want(WH_PEER_CONNECTED, state_of(peer));
	move_some(engine, peer, 7);
	want_true(was_logged("existing connections are not affected"),
		  "the log does not say it: %s", logged);
	want_true(was_logged("answers again"), "the log does not say it: %s", logged);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	child_exit(child);
	server_stop(&server);
}

/* A registry that does not answer is tried again, at growing intervals. */
static void registry__backs_off(void **state)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct server server;
	struct wh_engine *engine;
	int tries[2] = { 0, 0 }, one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int64_t begun;

	server_start(&server, *state, NULL);
	want(0, open_engine(&server, "node7", &engine));
	server_kill(&server);
	address.sin_port = htons((uint16_t)server.port);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	want(0, bind(fd, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(fd, 64));
	begun = now();
	while (now() - begun < 5 * SECOND) {
		struct pollfd ready = { .fd = fd, .events = POLLIN };

		if (poll(&ready, 1, 50) == 1) {
			close(accept(fd, NULL, NULL));
			tries[now() - begun > 2 * SECOND]++;
		}
	}
	want_true(tries[0] >= 2 && tries[0] <= 14, "%d tries in 2 s", tries[0]);
	want_true(tries[1] >= 1 && tries[1] < tries[0], "%d tries, then %d in 3 s", tries[0],
		  tries[1]);
	want(0, wh_engine_close(engine));
	close(fd);
	server_stop(&server);
}

/* Closing an engine does not wait for a stopped registry. */
static void registry__stopped(void **state)
{
	struct server server;
	struct wh_engine *engine;
	struct wh_peer *peer;
	int64_t begun;

	server_start(&server, *state, NULL);
	want(0, open_engine(&server, "node7", &engine));
	kill(server.pid, SIGSTOP);
	want(server.pid, waitpid(server.pid, NULL, WUNTRACED));
	begun = quiet_now();
	want(-ETIMEDOUT,
	     wh_peer_open(engine, "wherry://node8",
			  &(struct wh_peer_options){ .size = sizeof(struct wh_peer_options),
						     .timeout = 300 * MS },
			  &peer));
	want_true(quiet_now() - begun < SCALE(1, 4) * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - begun) / MS));
	begun = quiet_now();
	want(0, wh_engine_close(engine));
	want_true(quiet_now() - begun < SCALE(3, 6) * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - begun) / MS));
	kill(server.pid, SIGCONT);
	server_stop(&server);
}

/* ---- secrets --------------------------------------------------------------------------------- */

static void password__asked_for_and_not_told(void **state)
{
	static const char *const users[] = { "me:open", "me:clos%40e" };
	struct server server, wrong;
	struct wh_engine *engine;
	struct child *child;
	struct wh_peer *peer;

	forget_lines();
	server_start(&server, *state, "me:sesame");
	child = start_node(&server, "node7");
	want(0, open_engine(&server, "node8", &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	want(0, wh_peer_close(peer));
	for (size_t i = 0; i < 2; i++) {
		struct wh_engine *none;

		wrong = server;
		snprintf(wrong.url, sizeof(wrong.url), "%.*s%s%s",
			 (int)(strstr(server.url, "//") + 2 - server.url), server.url,
			 users[i] + (*state == &server_redis ? 2 : 0), strchr(server.url, '@'));
		want_text(-EACCES, "registry", open_engine(&wrong, "node9", &none));
		want_true(!strstr(wh_error_text(), "open") && !strstr(wh_error_text(), "clos"),
			  "it says: %s", wh_error_text());
	}
	/* Errors while the registry is gone do not contain the password either. */
	server_kill(&server);
	want_true(wh_peer_open(engine, "wherry://node7", NULL, &peer) < 0, "who has said so?");
	want_true(!strstr(wh_error_text(), "sesame"), "it says: %s", wh_error_text());
	server_again(&server);
	peer = open_peer(engine, "wherry://node7", ENDED);
	want(0, wh_peer_close(peer));
	want_true(!was_logged("sesame") && was_logged(""), "the log says: %s", logged);
	want(0, wh_engine_close(engine));
	child_exit(child);
	server_stop(&server);
}

/* An etcd with signed tokens, which are long. */
static void token__long(void **state)
{
	struct wh_engine *engine;
	struct server server;
	struct wh_peer *peer;

	server_start(&server, *state, "me:sesame");
	want(0, open_engine(&server, "node8", &engine));
	peer = open_peer(engine, "wherry://node8", 0);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

static void tls__both_sides_prove_themselves(void **state)
{
	struct server server, wrong;
	struct wh_engine *engine, *owner, *none;
	struct wh_peer *peer;

	server_start(&server, *state, NULL);
	want(0, open_engine(&server, "node7", &owner));
	want(0, open_engine(&server, NULL, &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	want(0, wh_peer_close(peer));
	server_kill(&server);
	server_again(&server);
	peer = open_peer(engine, "wherry://node7", ENDED);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(owner));
	want(0, wh_engine_close(engine));
	/* Without our certificate. (Redis may accept one connection before it refuses.) */
	wrong = server;
	*strstr(wrong.url, "&cert=") = '\0';
	want_true(open_engine(&wrong, "node7", &none) < 0, "without a certificate");
	/* Without the authority that signed the server's certificate. */
	wrong = server;
	*strchr(wrong.url, '?') = '\0';
	want_text(-EACCES, "certificate", open_engine(&wrong, "node7", &none));
	/* By another name than the one in the server's certificate. */
	snprintf(wrong.url, sizeof(wrong.url), "%.*slocalhost%s",
		 (int)(strstr(server.url, "127.0.0.1") - server.url), server.url,
		 strstr(server.url, "127.0.0.1") + strlen("127.0.0.1"));
	want(-EACCES, open_engine(&wrong, "node7", &none));
	/* With a certificate file that does not exist. */
	snprintf(wrong.url, sizeof(wrong.url), "%.*scacert=/nowhere.pem",
		 (int)(strchr(server.url, '?') + 1 - server.url), server.url);
	want_true(open_engine(&wrong, "node7", &none) < 0, "without the file");
	want_true(strstr(wh_error_text(), "/nowhere.pem"), "it says: %s", wh_error_text());
	server_stop(&server);
}

/* Nothing asks for the password: neither on the terminal nor from standard input. */
static void tls__key_with_a_password(void **state)
{
	static const char *const schemes[] = { "https", "etcds", "rediss" };
	static const char *const forms[] = { "locked", "older" };
	struct server at = { .directory = "/tmp/wherry-server-XXXXXX" };
	int ends[2], input = dup(STDIN_FILENO);
	struct wh_engine *none;
	char line[512];

	(void)state;
	want_true(mkdtemp(at.directory) != NULL, "no directory");
	snprintf(line, sizeof(line),
		 "cd %s && exec >out 2>&1 && "
		 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "
		 "key.pem "
		 "-out cert.pem -days 2 -subj /CN=node && "
		 "openssl pkey -in key.pem -aes128 -passout pass:sesame -out locked.pem && "
		 "openssl ec -in key.pem -aes128 -passout pass:sesame -out older.pem",
		 at.directory);
	want(0, system(line));
	for (size_t i = 0; i < 2 * sizeof(schemes) / sizeof(schemes[0]); i++) {
		char left[16] = "";

		want(0, pipe(ends));
		want(7, write(ends[1], "sesame\n", 7));
		close(ends[1]);
		want(STDIN_FILENO, dup2(ends[0], STDIN_FILENO));
		close(ends[0]);
		snprintf(at.url, sizeof(at.url), "%s://127.0.0.1:1?cert=%s/cert.pem&key=%s/%s.pem",
			 schemes[i / 2], at.directory, at.directory, forms[i % 2]);
		want_text(-EINVAL, forms[i % 2], open_engine(&at, "node7", &none));
		want_true(strstr(wh_error_text(), "is encrypted with a password") &&
				  !strchr(wh_error_text(), '\n'),
			  "it says: %s", wh_error_text());
		want(7, read(STDIN_FILENO, left, sizeof(left)));
		dup2(input, STDIN_FILENO);
	}
	close(input);
	snprintf(line, sizeof(line), "rm -r %s", at.directory);
	want(0, system(line));
}

/* An endpoint that does not exist changes nothing. */
static void etcd__several_endpoints(void **state)
{
	struct server server, both;
	struct wh_engine *engine;
	struct wh_peer *peer;

	server_start(&server, *state, NULL);
	both = server;
	snprintf(both.url, sizeof(both.url), "etcd://127.0.0.1:1,127.0.0.1:%d/cluster",
		 server.port);
	want(0, open_engine(&both, "node7", &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	want(0, wh_peer_close(peer));
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* Another engine gets the name. A peer that watches it must notice at once, although names are
 * looked up every 20 s only and the connection to the first engine stands. */
static void learns_at_once(const struct server *server, struct wh_engine *engine,
			   struct wh_peer *peer)
{
	struct child *child;
	int64_t begun;

	child = start_node(server, "node7");
	begun = quiet_now();
	while (state_of(peer) != WH_PEER_STALE && quiet_now() - begun < SCALE(2, 5) * SECOND)
		sleep_ms(5);
	want(WH_PEER_STALE, state_of(peer));
	want(0, wh_peer_close(peer));
	peer = open_peer(engine, "wherry://node7", 0);
	want_true(epoch_of(peer) == child->epoch, "not the new one");
	want(0, wh_peer_close(peer));
	child_exit(child);
}

static void etcd__watched(void **state)
{
	struct server server;
	struct wh_engine *engine;
	struct child *child;
	struct wh_peer *peer;

	server_start(&server, *state, NULL);
	child = start_node(&server, "node7");
	want(0, open_engine_for(&server, NULL, "lease=60s", &engine));
	peer = open_peer(engine, "wherry://node7", 0);
	child_exit(child);
	sleep_ms(300);
	learns_at_once(&server, engine, peer);
	want(0, wh_engine_close(engine));
	server_stop(&server);
}

/* Two paths to one server, as if it were two servers. */
struct ways {
	struct server server, both;
	struct proxy *first, *second;
};

static void ways_open(struct ways *w, const struct route *kind)
{
	char url[64];

	server_start(&w->server, kind, NULL);
	snprintf(url, sizeof(url), "wherry://127.0.0.1:%d", w->server.port);
	w->first = proxy_start(url);
	w->second = proxy_start(url);
	want_true(w->first && w->second, "no proxy");
	w->both = w->server;
	snprintf(w->both.url, sizeof(w->both.url), "etcd://%s,%s",
		 strstr(proxy_url(w->first), "127"), strstr(proxy_url(w->second), "127"));
	snprintf(w->both.setting, sizeof(w->both.setting), "registry=%s", w->both.url);
}

static void ways_close(struct ways *w)
{
	if (w->first)
		proxy_stop(w->first);
	proxy_stop(w->second);
	server_stop(&w->server);
}

/* An engine keeps its name, finds other engines and learns of changes, whatever happens to the
 * endpoint that it uses. */
static void endpoint_fails(struct ways *w, void (*upset)(struct ways *w))
{
	struct wh_engine *named, *engine, *direct;
	struct child *child;
	struct wh_peer *peer, *other;
	unsigned int before;
	int64_t begun;

	child = start_node(&w->server, "node7");
	want(0, open_engine_for(&w->both, "node8", "lease=4s", &named));
	want(0, open_engine_for(&w->both, NULL, "lease=60s", &engine));
	want(0, open_engine(&w->server, NULL, &direct));
	peer = open_peer(engine, "wherry://node7", 0);
	child_exit(child); /* from now on the name is watched */
	begun = now();
	while (proxy_connections(w->first, 0) < 3 && now() - begun < PATIENCE)
		sleep_ms(20);
	sleep_ms(300);
	want_true(proxy_connections(w->first, 0) >= 3, "nobody uses the first endpoint");
	before = proxy_accepted(w->second);
	upset(w);
	/* For longer than its lease the name must always be found. */
	for (begun = now(); now() - begun < 6 * SECOND; sleep_ms(200)) {
		want(0, wh_peer_open(direct, "wherry://node8", NULL, &other));
		want(0, wh_peer_close(other));
	}
	want_true(proxy_accepted(w->second) > before, "nobody uses the second endpoint");
	begun = quiet_now();
	other = open_peer(engine, "wherry://node8", 0);
	want(0, wh_peer_close(other));
	want_true(quiet_now() - begun < 2 * SECOND, "it took %lld ms",
		  (long long)((quiet_now() - begun) / MS));
	learns_at_once(&w->server, engine, peer);
	want(0, wh_engine_close(named));
	want(0, wh_engine_close(engine));
	want(0, wh_engine_close(direct));
}

static void end_first(struct ways *w)
{
	proxy_stop(w->first);
	w->first = NULL;
}

static void freeze_first(struct ways *w)
{
	proxy_freeze(w->first, true);
}

static void etcd__endpoint_lost(void **state)
{
	struct ways w;

	ways_open(&w, *state);
	endpoint_fails(&w, end_first);
	ways_close(&w);
}

static void etcd__endpoint_hangs(void **state)
{
	struct ways w;

	ways_open(&w, *state);
	endpoint_fails(&w, freeze_first);
	ways_close(&w);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
		TEST_EVERY_SERVER(name__found_and_given_back),
		TEST_EVERY_SERVER(name__taken),
		TEST_ON(name__not_given, wherry),
		TEST_EVERY_SERVER(killed__name_goes_to_another),
		TEST_EVERY_SERVER(killed__lease_not_waited_for),
		TEST_EVERY_SERVER(registry__killed_and_started_again),
		TEST_EVERY_SERVER(registry__stopped),
		TEST_ON(registry__backs_off, redis),
		TEST_ON(password__asked_for_and_not_told, wherry),
		TEST_ON(password__asked_for_and_not_told, redis),
		TEST_ON(password__asked_for_and_not_told, etcd),
		TEST_ON(token__long, etcd_jwt),
		TEST_ON(tls__both_sides_prove_themselves, redis_tls),
		TEST_ON(tls__both_sides_prove_themselves, etcd_tls),
		TEST(tls__key_with_a_password),
		TEST_ON(etcd__several_endpoints, etcd),
		TEST_ON(etcd__watched, etcd),
		TEST_ON(etcd__endpoint_lost, etcd),
		TEST_ON(etcd__endpoint_hangs, etcd),
	};

	return harness_main(argc, argv, "registry-engines", tests, sizeof(tests) / sizeof(*tests));
}
