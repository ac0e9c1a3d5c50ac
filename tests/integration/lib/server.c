/* SPDX-License-Identifier: Apache-2.0 */
/* server.c: start and end real registry servers: wherry registry, plain.py, redis, etcd */
#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* For server_end() after a failed test, whose struct server was on the stack. */
static struct {
	pid_t pid;
	char directory[40];
} running[SERVER_MEMBERS];

/* The addresses at which the members of an etcd cluster talk to each other; the list of all. */
static char member_url[SERVER_MEMBERS][40], members[160];

static const char *missing_program(const char *name)
{
	char command[80];

	snprintf(command, sizeof(command), "command -v %s >/dev/null 2>&1", name);
	return system(command) == 0 ? NULL : name;
}

static const char *missing_redis(void)
{
	return missing_program("redis-server") ? "there is no redis-server" : NULL;
}

static const char *missing_etcd(void)
{
	return missing_program("etcd") ? "there is no etcd" : NULL;
}

static const char *missing_command(void)
{
	return access(getenv("TEST_COMMAND") ? getenv("TEST_COMMAND") : "", X_OK) ?
		       "TEST_COMMAND is not the wherry command" :
		       NULL;
}

static const char *missing_python(void)
{
	return missing_program("python3") ? "there is no python3" : NULL;
}

static const char *missing_redis_tls(void)
{
	return missing_program("redis-server") || missing_program("openssl") ?
		       "there is no redis-server or no openssl" :
		       NULL;
}

static const char *missing_etcd_tls(void)
{
	return missing_program("etcd") || missing_program("openssl") ?
		       "there is no etcd or no openssl" :
		       NULL;
}

const struct route server_wherry = { .name = "wherry", .missing = missing_command };
const struct route server_plain = { .name = "plain", .missing = missing_python };
const struct route server_redis = { .name = "redis", .missing = missing_redis };
const struct route server_etcd = { .name = "etcd", .missing = missing_etcd };
const struct route server_etcd_jwt = { .name = "etcd-jwt", .missing = missing_etcd_tls };
const struct route server_redis_tls = { .name = "redis-tls", .missing = missing_redis_tls };
const struct route server_etcd_tls = { .name = "etcd-tls", .missing = missing_etcd_tls };

static bool is_redis(const struct server *server)
{
	return server->kind == &server_redis || server->kind == &server_redis_tls;
}

static bool has_tls(const struct server *server)
{
	return server->kind == &server_redis_tls || server->kind == &server_etcd_tls;
}

/* ---- starting ---------------------------------------------------------- */

/* A free port for a server that starts soon, outside the kernel's range for outgoing connections:
 * running members of a cluster retry connections to absent ones, and could take the port. */
static int free_port(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	static uint16_t next;
	int fd, error;

	if (!next)
		want(sizeof(next), getrandom(&next, sizeof(next), 0));
	do {
		address.sin_port = htons((uint16_t)(10000 + next++ % 20000));
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		error = bind(fd, (struct sockaddr *)&address, sizeof(address)) ? errno : 0;
		close(fd);
	} while (error == EADDRINUSE);
	want(0, error);
	return ntohs(address.sin_port);
}

static void write_file(const struct server *server, const char *name, const char *text)
{
	char path[80];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", server->directory, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	want((long long)strlen(text), write(fd, text, strlen(text)));
	close(fd);
}

/* The server's command as a line for a shell, which executes nothing else before it. */
static void make_line(const struct server *server, char *line, size_t size)
{
	const char *at = server->directory, *password = strchr(server->secret, ':');
	const char *tls = has_tls(server) ? "s" : "";

	if (server->kind == &server_wherry)
		snprintf(line, size, "exec %s registry --listen 127.0.0.1:%d --file %s/log%s%s%s",
			 getenv("TEST_COMMAND"), server->port, at, password ? " --auth " : "",
			 password ? at : "", password ? "/auth" : "");
	else if (server->kind == &server_plain)
		snprintf(line, size, "exec python3 %s/tests/integration/lib/plain.py %d %s/values",
			 getenv("TEST_SOURCE"), server->port, at);
	else if (is_redis(server))
		snprintf(line, size,
			 "cd %s && exec redis-server --bind 127.0.0.1 %s %d --save '' "
			 "--appendonly yes --appendfsync always %s%s",
			 at,
			 has_tls(server) ? "--tls-cert-file cert.pem --tls-key-file key.pem "
					   "--tls-ca-cert-file ca.pem --port 0 --tls-port" :
					   "--port",
			 server->port, password ? "--requirepass " : "",
			 password ? password + 1 : "");
	else
		snprintf(line, size,
			 "cd %s && exec etcd --name m%u --data-dir data --listen-client-urls "
			 "http%s://127.0.0.1:%d --advertise-client-urls http%s://127.0.0.1:%d "
			 "--listen-peer-urls %s --initial-advertise-peer-urls %s --initial-cluster "
			 "%s%s%s",
			 at, server->slot, tls, server->port, tls, server->port,
			 member_url[server->slot], member_url[server->slot], members,
			 has_tls(server) ?
				 " --cert-file cert.pem --key-file key.pem --client-cert-auth "
				 "--trusted-ca-file ca.pem" :
				 "",
			 server->kind == &server_etcd_jwt ?
				 " --auth-token "
				 "jwt,pub-key=jwt.pub,priv-key=jwt.key,sign-method=RS256" :
			 strchr(members, ',') ? " --heartbeat-interval 50 --election-timeout 250" :
						"");
}

/* Create an authority and one certificate for 127.0.0.1, which client and server share. */
static void make_certificates(const struct server *server)
{
	char line[768];

	snprintf(line, sizeof(line),
		 "cd %s && exec >certificates 2>&1 && k='-newkey ec -pkeyopt "
		 "ec_paramgen_curve:P-256 -nodes' && "
		 "openssl req -x509 $k -keyout ca.key -out ca.pem -days 2 -subj /CN=ca && "
		 "openssl req $k -keyout key.pem -out request.pem -subj /CN=node && "
		 "printf 'subjectAltName=IP:127.0.0.1\n' >names && "
		 "openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial "
		 "-out cert.pem -days 2 -extfile names",
		 server->directory);
	want(0, system(line));
}

static void make_token_keys(const struct server *server)
{
	char line[256];

	snprintf(line, sizeof(line),
		 "cd %s && openssl genrsa -out jwt.key 2048 2>certificates && "
		 "openssl rsa -in jwt.key -pubout -out jwt.pub 2>>certificates",
		 server->directory);
	want(0, system(line));
}

static void server_launch(struct server *server)
{
	char line[1024], log[80];
	pid_t parent = getpid();

	make_line(server, line, sizeof(line));
	snprintf(log, sizeof(log), "%s/output", server->directory);
	server->pid = fork();
	if (server->pid == 0) {
		int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent || dup2(fd, 1) < 0 || dup2(fd, 2) < 0)
			_exit(1);
		unsetenv("LD_PRELOAD");
		execl("/bin/sh", "sh", "-c", line, (char *)NULL);
		_exit(1);
	}
	want_true(server->pid > 0, "cannot fork");
	running[server->slot].pid = server->pid;
}

/* Print the last output of the server. */
static void show_output(const struct server *server)
{
	char line[128];

	snprintf(line, sizeof(line), "tail -n 5 %s/output >&2", server->directory);
	if (system(line))
		fprintf(stderr, "it said nothing\n");
}

/* Wait until the server answers as a registry. */
static void wait_ready(const struct server *server)
{
	struct wh_engine_options options = {
		.size = sizeof(options),
		.listen = "none",
		.registry = server->url,
	};
	int64_t end = now() + SCALE(30, 60) * SECOND;
	struct wh_engine *engine;
	struct wh_peer *peer;
	int error;

	want(0, wh_engine_open(&options, &engine));
	while ((error = wh_peer_open(engine, "wherry://nobody", NULL, &peer)) != -ENOENT) {
		bool ended = waitpid(server->pid, NULL, WNOHANG) != 0;

		if (ended)
			running[server->slot].pid = 0;
		if (ended || now() > end) {
			show_output(server);
			fail_msg("the server does not come up: %s: %s", strerrorname_np(-error),
				 wh_error_text());
		}
		sleep_ms(50);
	}
	want(0, wh_engine_close(engine));
}

/* Create the user in etcd, which must be running for that. */
static void protect_etcd(const struct server *server)
{
	const char *password = strchr(server->secret, ':') + 1;
	char line[768];
	int length = (int)(password - 1 - server->secret);

	snprintf(line, sizeof(line),
		 "set -e; ask() { python3 -c 'import sys, urllib.request as u; "
		 "u.urlopen(sys.argv[1], sys.argv[2].encode())' http://127.0.0.1:%d/v3/auth/$1 "
		 "\"$2\"; }; "
		 "ask user/add '{\"name\":\"root\",\"password\":\"r\"}'; "
		 "ask role/add '{\"name\":\"root\"}'; "
		 "ask user/grant '{\"user\":\"root\",\"role\":\"root\"}'; "
		 "ask user/add '{\"name\":\"%.*s\",\"password\":\"%s\"}'; "
		 "ask user/grant '{\"user\":\"%.*s\",\"role\":\"root\"}'; ask enable '{}'",
		 server->port, length, server->secret, password, length, server->secret);
	want(0, system(line));
}

static const char *scheme_of(const struct server *server)
{
	if (is_redis(server))
		return has_tls(server) ? "rediss" : "redis";
	if (server->kind == &server_etcd || server->kind == &server_etcd_tls ||
	    server->kind == &server_etcd_jwt)
		return has_tls(server) ? "etcds" : "etcd";
	return "http";
}

/* Everything up to the start of the process. */
static void server_prepare(struct server *server, const struct route *kind, const char *secret,
			   unsigned slot)
{
	memset(server, 0, sizeof(*server));
	server->kind = kind;
	server->slot = slot;
	server->port = free_port();
	strcpy(server->directory, "/tmp/wherry-server-XXXXXX");
	want_true(mkdtemp(server->directory) != NULL, "no directory");
	snprintf(server->secret, sizeof(server->secret), "%s", secret ? secret : "");
	if (*server->secret)
		write_file(server, "auth", server->secret);
	memcpy(running[slot].directory, server->directory, sizeof(running[slot].directory));
	snprintf(member_url[slot], sizeof(member_url[slot]), "http://127.0.0.1:%d", free_port());
	if (has_tls(server))
		make_certificates(server);
	if (kind == &server_etcd_jwt)
		make_token_keys(server);
	snprintf(server->url, sizeof(server->url), "%s://%s%s127.0.0.1:%d%s", scheme_of(server),
		 is_redis(server) && secret ? strchr(secret, ':') : server->secret,
		 secret ? "@" : "", server->port, has_tls(server) ? "?" : "");
	if (has_tls(server))
		snprintf(server->url + strlen(server->url),
			 sizeof(server->url) - strlen(server->url),
			 "cacert=%s/ca.pem&cert=%s/cert.pem&key=%s/key.pem", server->directory,
			 server->directory, server->directory);
	snprintf(server->setting, sizeof(server->setting), "registry=%s", server->url);
}

void server_start(struct server *server, const struct route *kind, const char *secret)
{
	char plain[96];

	server_prepare(server, kind, secret, 0);
	snprintf(members, sizeof(members), "m0=%s", member_url[0]);
	snprintf(plain, sizeof(plain), "etcd://127.0.0.1:%d", server->port);
	server_launch(server);
	if (secret && (kind == &server_etcd || kind == &server_etcd_jwt)) {
		struct server open = *server;

		strcpy(open.url, plain);
		wait_ready(&open);
		protect_etcd(server);
	}
	wait_ready(server);
}

void server_start_cluster(struct server member[SERVER_MEMBERS])
{
	members[0] = '\0';
	for (unsigned i = 0; i < SERVER_MEMBERS; i++) {
		server_prepare(&member[i], &server_etcd, NULL, i);
		snprintf(members + strlen(members), sizeof(members) - strlen(members), "%sm%u=%s",
			 i ? "," : "", i, member_url[i]);
	}
	for (unsigned i = 0; i < SERVER_MEMBERS; i++)
		server_launch(&member[i]);
	for (unsigned i = 0; i < SERVER_MEMBERS; i++)
		wait_ready(&member[i]);
}

/* ---- ending ------------------------------------------------------------ */

void server_kill(struct server *server)
{
	int status = 0;

	if (server->pid > 0) {
		kill(server->pid, SIGKILL);
		waitpid(server->pid, &status, 0);
		tell_crash("a server", status);
	}
	server->pid = running[server->slot].pid = 0;
}

void server_again(struct server *server)
{
	server_launch(server);
	wait_ready(server);
}

static int remove_one(const char *path, const struct stat *file, int kind, struct FTW *at)
{
	(void)file, (void)kind, (void)at;
	return remove(path);
}

static void remove_files(unsigned slot)
{
	if (*running[slot].directory)
		nftw(running[slot].directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	running[slot].directory[0] = '\0';
}

void server_stop(struct server *server)
{
	server_kill(server);
	remove_files(server->slot);
}

int server_end(void **state)
{
	for (unsigned i = 0; i < SERVER_MEMBERS; i++) {
		if (running[i].pid > 0) {
			kill(running[i].pid, SIGKILL);
			waitpid(running[i].pid, NULL, 0);
			running[i].pid = 0;
		}
		remove_files(i);
	}
	return harness_end(state);
}
