/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: waits hostile */
/* hostile-meet.c: strangers and relays at the unix socket in a shared folder
 *
 * A descriptor passes to nobody who has not proved the session's key as the very process at the
 * other end. The strangers here are of the same user, who may do anything in the folder. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "lib/command.h"
#include "lib/container.h"
#include "lib/network.h"
#include "lib/raw.h"
#include "net/meet.h"

#define LENGTH (64 * KIB)
#define SOON 60000 /* ms; ends a test that hangs */

/* Since Linux 6.9 the pidfds of two processes have two inodes; before, a relay of the same user is
 * not noticed. */
static const char *missing_numbers(void)
{
	int own = (int)syscall(SYS_pidfd_open, getpid(), 0);
	int parent = (int)syscall(SYS_pidfd_open, getppid(), 0);
	struct stat a = { .st_ino = 1 }, b = { .st_ino = 1 };
	bool can = own >= 0 && parent >= 0 && !fstat(own, &a) && !fstat(parent, &b) &&
		   a.st_ino != b.st_ino;

	if (own >= 0)
		close(own);
	if (parent >= 0)
		close(parent);
	return can ? NULL : "this kernel, older than 6.9, gives processes no numbers";
}

static const char *missing_both(void)
{
	return missing_numbers() ? missing_numbers() : needs_containers.missing();
}

static const struct route needs_numbers = { .name = "numbers", .missing = missing_numbers };
static const struct route needs_both = { .name = "numbers and networks", .missing = missing_both };

struct meeting {
	char folder[64];
	struct child *owner;
	int control;
	struct wh_hello welcome;
};

/* `timeout` is the owner's; NULL: long. */
static void meeting_open(struct meeting *m, const char *timeout)
{
	char meet[96];
	struct child_options options = { .config = { meet, timeout } };

	directory_make(m->folder);
	snprintf(meet, sizeof(meet), "meet=%s", m->folder);
	m->owner = child_start(&options);
	child_region(m->owner, child_memory(m->owner, WH_MEMORY_SHARED, LENGTH), 0, LENGTH,
		     "target", ACCESS_BOTH, NULL);
	m->control = raw_control(m->owner->url, &m->welcome);
	want_true(m->control >= 0, "no session");
	want_true(m->welcome.capabilities & WH_CAPABLE_MEET, "it listens in no folder");
}

static void meeting_close(struct meeting *m)
{
	char path[96];

	close(m->control);
	child_exit(m->owner);
	snprintf(path, sizeof(path), "%s/wherry-%u", m->folder, (unsigned)geteuid());
	want(0, rmdir(path)); /* nothing is left in it */
	want(0, rmdir(m->folder));
}

static struct sockaddr_un socket_address(const char *folder, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	want_true(snprintf(address.sun_path, sizeof(address.sun_path), "%s/wherry-%u/%s", folder,
			   (unsigned)geteuid(), name) < (int)sizeof(address.sun_path),
		  "too long");
	return address;
}

static int socket_of(const struct meeting *m)
{
	int fd = raw_meet(m->folder, m->welcome.socket);

	want_true(fd >= 0, "cannot connect: %s", strerror(errno));
	return fd;
}

/* Receive what there is, until the end or ALIVE. Returns the descriptors that came along; `refused`
 * is the errno of a REFUSED, or 0. */
static unsigned descriptors_from(int fd, int *refused)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_HELLO_MAX];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(8 * sizeof(int))];
	} control;
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct wh_frame frame;
	unsigned count = 0;
	ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	char text[WH_REFUSAL_MAX];

	*refused = 0;
	if (got < WH_FRAME_HEADER)
		return 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		count += (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
			close(((const int *)(const void *)CMSG_DATA(c))[i]);
	}
	if (!wh_frame_decode(bytes, &frame) && frame.type == WH_FRAME_REFUSED)
		wh_refusal_decode(bytes + WH_FRAME_HEADER, frame.length, refused, text);
	return count;
}

/* Prove `key` on a connection, bound to this process if asked. Returns how many descriptors came.
 */
static unsigned prove(const struct meeting *m, int fd, const uint8_t *key, bool bind, int *refused)
{
	struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, &m->welcome);
	struct raw_shake shake;
	uint8_t bound[WH_KEY_SIZE];

	memcpy(bound, key, sizeof(bound));
	if (bind)
		want(0, wh_meet_bind(raw_crypto(), fd, false, bound));
	want(0, raw_shake(fd, &hello, bound, &shake));
	want(0, raw_prove(fd, shake.proofs.initiator));
	return descriptors_from(fd, refused);
}

/* ---- strangers at an owner ----------------------------------------------------------------------
 */

static void owner__the_right_process(void **state)
{
	struct meeting m;
	int refused, fd;

	(void)state;
	meeting_open(&m, NULL);
	fd = socket_of(&m);
	want(1, prove(&m, fd, raw_session_key(&m.welcome), true, &refused));
	close(fd);
	meeting_close(&m);
}

/* Another key; the right one, which is bound to no process; the cluster's in place of the
 * session's.
 */
static void owner__wrong_proofs(void **state)
{
	static const uint8_t other[WH_KEY_SIZE] = { 1, 2, 3 };
	struct meeting m;
	int refused;

	(void)state;
	meeting_open(&m, NULL);
	for (int i = 0; i < 4; i++) {
		const uint8_t *key = i == 0 ? other :
				     i == 1 ? raw_key() :
					      raw_session_key(&m.welcome);
		int fd;

		if (i == 2 && missing_numbers())
			continue;
		fd = socket_of(&m);
		if (i == 3) { /* no session of that number */
			struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, &m.welcome);
			struct raw_shake shake;

			hello.session += 7;
			want(EACCES, raw_shake(fd, &hello, key, &shake));
		} else {
			want(0, prove(&m, fd, key, i < 2, &refused));
			want(EACCES, refused);
		}
		close(fd);
	}
	meeting_close(&m);
}

/* Nothing but an authenticated MAP gets an answer: control and data connections do not come this
 * way, and what is no handshake ends the connection. */
static void owner__no_handshake(void **state)
{
	static const uint8_t garbage[] = "GET / HTTP/1.1\r\n\r\n";
	struct wh_hello hello;
	struct raw_shake shake;
	struct meeting m;
	int fd;

	(void)state;
	meeting_open(&m, NULL);
	for (uint16_t role = WH_ROLE_CONTROL; role <= WH_ROLE_DATA; role++) {
		fd = socket_of(&m);
		hello = raw_hello_of(role, &m.welcome);
		want(EOPNOTSUPP, raw_shake(fd, &hello, raw_key(), &shake));
		close(fd);
	}
	fd = socket_of(&m);
	want(0, send_all(fd, garbage, sizeof(garbage)));
	want_true(raw_closes(fd, SOON), "it goes on");
	close(fd);
	/* The engine serves as before. */
	fd = raw_control(m.owner->url, &hello);
	want_true(fd >= 0, "no session");
	want(1, raw_count_regions(fd));
	close(fd);
	meeting_close(&m);
}

static void owner__silence(void **state)
{
	struct meeting m;
	int fd;

	(void)state;
	meeting_open(&m, SCALE("timeout=1000", "timeout=4000"));
	fd = socket_of(&m);
	want_true(raw_closes(fd, SOON), "it waits for ever");
	close(fd);
	meeting_close(&m);
}

/* A process connects and hands the connection to another one, which knows the key. The process at
 * the owner's other end is the first, whether it lives or not. */
static void owner__connection_passed_on(void **state)
{
	struct meeting m;

	(void)state;
	meeting_open(&m, NULL);
	for (int ended = 0; ended < 2; ended++) {
		struct sockaddr_un address;
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), refused, status;
		struct wh_hello hello = raw_hello_of(WH_ROLE_LOCAL, &m.welcome);
		uint8_t bound[WH_KEY_SIZE];
		struct raw_shake shake;
		int ready[2], error;
		pid_t pid;
		char byte;

		address = socket_address(m.folder, m.welcome.socket);
		want(0, pipe(ready));
		pid = fork();
		if (!pid) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (!connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
			    write(ready[1], "", 1) == 1 && !ended)
				pause();
			_exit(0);
		}
		want(1, read(ready[0], &byte, 1));
		if (ended)
			want(pid, waitpid(pid, &status, 0));
		memcpy(bound, raw_session_key(&m.welcome), sizeof(bound));
		want(0, wh_meet_bind(raw_crypto(), fd, false, bound));
		error = raw_shake(fd, &hello, bound, &shake);
		if (!error) {
			want(0, raw_prove(fd, shake.proofs.initiator));
			want(0, descriptors_from(fd, &refused));
			want(EACCES, refused);
		}
		close(fd);
		close(ready[0]);
		close(ready[1]);
		if (!ended) {
			kill(pid, SIGKILL);
			want(pid, waitpid(pid, &status, 0));
		}
	}
	meeting_close(&m);
}

/* ---- a relay between two engines ----------------------------------------------------------------
 */

/* It has taken the name of the owner's socket, which it moved away, and passes all bytes and
 * descriptors on. */
struct relay {
	pthread_t thread;
	int listener;
	char genuine[160];
	bool answers; /* else it accepts and keeps silent */
	atomic_bool stop;
	atomic_uint connections, bytes, descriptors;
};

static bool relay_pass(struct relay *relay, int from, int to)
{
	char bytes[4096];
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t got = recvmsg(from, &message, MSG_DONTWAIT);

	if (got <= 0)
		return got < 0 && errno == EAGAIN;
	atomic_fetch_add(&relay->bytes, (unsigned)got);
	if (message.msg_controllen)
		atomic_fetch_add(&relay->descriptors, 1);
	iov.iov_len = (size_t)got;
	return sendmsg(to, &message, MSG_NOSIGNAL) == got;
}

static void *relay_run(void *arg)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	struct relay *relay = arg;

	memcpy(address.sun_path, relay->genuine, sizeof(address.sun_path));
	while (!atomic_load(&relay->stop)) {
		int client = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC), owner;
		bool good = true;

		if (client < 0) {
			usleep(1000);
			continue;
		}
		atomic_fetch_add(&relay->connections, 1);
		owner = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (connect(owner, (struct sockaddr *)&address, sizeof(address)))
			good = false;
		while (good && !atomic_load(&relay->stop)) {
			good = !relay->answers || (relay_pass(relay, client, owner) &&
						   relay_pass(relay, owner, client));
			usleep(200);
		}
		close(owner);
		close(client);
	}
	return NULL;
}

static void relay_start(struct relay *relay, const char *folder)
{
	char directory[96], name[64], command[400];
	struct sockaddr_un address;
	FILE *list;

	snprintf(directory, sizeof(directory), "%s/wherry-0", folder);
	snprintf(command, sizeof(command), "ls %s", directory);
	list = popen(command, "re");
	want_true(list && fgets(name, sizeof(name), list), "no socket in %s", directory);
	name[strcspn(name, "\n")] = 0;
	pclose(list);
	snprintf(relay->genuine, sizeof(relay->genuine), "%s/true", directory);
	address = socket_address(folder, name);
	want(0, rename(address.sun_path, relay->genuine));
	relay->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	want(0, bind(relay->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(relay->listener, 8));
	want(0, pthread_create(&relay->thread, NULL, relay_run, relay));
}

static void relay_stop(struct relay *relay)
{
	atomic_store(&relay->stop, true);
	pthread_join(relay->thread, NULL);
	close(relay->listener);
	unlink(relay->genuine);
}

/* Two engines in two networks, which meet in a folder where a relay sits: no descriptor passes, and
 * they go by TCP, with the reason. The same with one that is silent, in a bounded time. */
static void engines__relay(void **state)
{
	(void)state;
	harness_limit(120);
	for (int answers = 1; answers >= 0; answers--) {
		struct relay relay = { .answers = answers };
		char folder[64], meet[96], text[256], command[200];
		struct child_options options = { .config = { SHARED_KEY, meet } };
		struct child_transfer transfer = { .remote = "target",
						   .op = WH_WRITE,
						   .length = LENGTH };
		struct child_result result;
		struct child *owner, *initiator;
		struct container_cable cable;
		int memory;

		container_cable_open(&cable);
		directory_make(folder);
		snprintf(meet, sizeof(meet), "meet=%s", folder);
		options.listen = CONTAINER_RIGHT ":0";
		network_enter(cable.right);
		owner = child_start(&options);
		network_enter(cable.left);
		child_region(owner, child_memory(owner, WH_MEMORY_SHARED, LENGTH), 0, LENGTH,
			     "target", ACCESS_BOTH, NULL);
		relay_start(&relay, folder);
		options.listen = "none";
		initiator = child_start(&options);
		memory = child_memory(initiator, WH_MEMORY_PAGEABLE, LENGTH);
		transfer.region = child_region(initiator, memory, 0, LENGTH, NULL, 0, NULL);
		transfer.peer = child_peer(initiator, owner->url, text);
		want_true(transfer.peer >= 0, "%s", text);
		want_true(!child_transfer(initiator, &transfer, &result), "%s", result.text);
		assert_string_equal(result.transport, "tcp");
		want_true(strstr(result.explain,
				 answers ? "authentication failed" : "no answer within 1 s"),
			  "%s", result.explain);
		want_true(atomic_load(&relay.connections) > 0, "the relay was not asked");
		want(0, atomic_load(&relay.descriptors));
		relay_stop(&relay);
		child_exit(initiator);
		child_exit(owner);
		snprintf(command, sizeof(command), "rm -r %s", folder);
		want(0, system(command));
		container_cable_close(&cable);
	}
}

static const struct CMUnitTest tests[] = {
	TEST(owner__the_right_process),
	TEST(owner__wrong_proofs),
	TEST(owner__no_handshake),
	TEST(owner__silence),
	TEST_NEEDS(owner__connection_passed_on, needs_numbers),
	TEST_NEEDS(engines__relay, needs_both),
};

HARNESS_MAIN("hostile-meet", tests)
