/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c: the main program of the integration tests, and the test's side of child processes */
#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define LIMIT 20u /* seconds; the default limit of a test */
#define CHILDREN_MAX 64

extern char **environ;

static struct child *children[CHILDREN_MAX];
static unsigned int fds_before;

/* ---- small things ------------------------------------------------------ */

int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * SECOND + t.tv_nsec;
}

/* Async-signal-safe: the alarm's handler calls it, too. */
int64_t quiet_now(void)
{
	int fd = open("/proc/pressure/cpu", O_RDONLY | O_CLOEXEC);
	char text[200] = "", *at;
	int64_t us = 0;

	if (fd >= 0) {
		if (read(fd, text, sizeof(text) - 1) < 0)
			*text = '\0';
		close(fd);
	}
	at = strstr(text, "total="); /* the total of "some", the first line */
	for (at = at ? at + 6 : text + sizeof(text) - 1; *at >= '0' && *at <= '9'; at++)
		us = 10 * us + *at - '0';
	return now() - us * 1000;
}

void sleep_ms(unsigned int ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

unsigned int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int count = 0;

	if (!dir)
		return 0;
	while (readdir(dir))
		count++;
	closedir(dir);
	return count - 3; /* ".", ".." and the directory itself */
}

unsigned int count_maps(void)
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned int count = 0;
	int c;

	if (!file)
		return 0;
	while ((c = getc(file)) != EOF)
		count += c == '\n';
	fclose(file);
	return count;
}

uint64_t resident(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long size, pages = 0;

	if (!file)
		return 0;
	if (fscanf(file, "%lu %lu", &size, &pages) != 2)
		pages = 0;
	fclose(file);
	return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool fds_back_to(unsigned int most, int64_t patience)
{
	int64_t end = now() + patience;

	while (count_fds() > most) {
		if (now() > end)
			return false;
		sleep_ms(10);
	}
	return true;
}

static void wrong(long long value, long long got, const char *call, const char *file, int line)
{
	char wanted[32];

	snprintf(wanted, sizeof(wanted), "%s", value < 0 ? strerrorname_np((int)-value) : "");
	print_error("%s:%d: %s\n\treturned %lld%s%s, wanted %lld %s\n\tthe library says: %s\n",
		    file, line, call, got, got < 0 && got > -4096 ? " " : "",
		    got < 0 && got > -4096 ? strerrorname_np((int)-got) : "", value, wanted,
		    wh_error_text());
	_fail(file, line);
}

void want_at(long long value, long long got, const char *call, const char *file, int line)
{
	if (got != value)
		wrong(value, got, call, file, line);
}

void want_text_at(long long value, const char *word, long long got, const char *call,
		  const char *file, int line)
{
	if (got != value)
		wrong(value, got, call, file, line);
	if (strstr(wh_error_text(), word))
		return;
	print_error("%s:%d: %s\n\tthe text does not say \"%s\": %s\n", file, line, call, word,
		    wh_error_text());
	_fail(file, line);
}

int read_all(int fd, void *out, size_t length)
{
	char *at = out;

	while (length) {
		ssize_t n = read(fd, at, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

int send_all(int fd, const void *in, size_t length)
{
	const char *at = in;

	while (length) {
		ssize_t n = send(fd, at, length, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return -1;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

#if HARNESS_TURNS
/* From the sanitizer's runtime, which has no header for them. */
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

void hidden_begin(void)
{
	AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
	AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

void hidden_end(void)
{
	AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
void hidden_begin(void)
{
}

void hidden_end(void)
{
}
#endif

/* ---- what this machine has --------------------------------------------- */

static const char *missing_vm(void)
{
	volatile int there = 1;
	int here = 0;
	struct iovec to = { &here, sizeof(here) }, from = { (void *)&there, sizeof(there) };
	const char *why = NULL;
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(10);
		pause();
		_exit(0);
	}
	/* Yama alone is no reason: children allow access to all with PR_SET_PTRACER. */
	if (process_vm_readv(pid, &to, 1, &from, 1, 0) != sizeof(here) && errno != EPERM)
		why = "the kernel has no process_vm_readv";
	else if (here != 1 && access("/proc/sys/kernel/yama/ptrace_scope", F_OK) != 0)
		why = "process_vm_readv is not permitted";
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return why;
}

static const char *missing_tcp6(void)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_addr = in6addr_loopback };
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int error = fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0;

	if (fd >= 0)
		close(fd);
	return error ? "there is no ::1" : NULL;
}

static const char *missing_root(void)
{
	return geteuid() == 0 ? NULL : "only root can become another user";
}

const struct route route_self = {
	.name = "self",
	.require = "self",
	.detail = "",
	.kind = WH_MEMORY_SHARED,
};
const struct route route_shm = {
	.name = "shm",
	.require = "shm",
	.detail = "memfd",
	.kind = WH_MEMORY_SHARED,
};
const struct route route_vm = {
	.name = "shm",
	.require = "shm",
	.detail = "process_vm",
	.kind = CHILD_FOREIGN,
	.missing = missing_vm,
};
const struct route route_tcp4 = {
	.name = "tcp",
	.require = "tcp",
	.listen = "127.0.0.1:0",
	.detail = "connection",
	.kind = WH_MEMORY_PAGEABLE,
};
const struct route route_tcp6 = {
	.name = "tcp",
	.require = "tcp",
	.listen = "[::1]:0",
	.detail = "connection",
	.kind = WH_MEMORY_PAGEABLE,
	.missing = missing_tcp6,
};
/* Devices for this process and for the children: real ones ("rxe0,rxe1") or the fake library's. */
static const char *missing_rdma(void)
{
	return getenv("TEST_RDMA") || getenv("TEST_VERBS") ? NULL :
							     "there is no RDMA device to test with";
}

static const char *missing_gpu_rdma(void)
{
	return !getenv("TEST_VERBS") || getenv("TEST_RDMA") || !getenv("TEST_CUDA") ?
		       "it takes the fake CUDA driver and the fake libibverbs" :
		       NULL;
}

const struct route route_rdma = {
	.name = "rdma",
	.require = "rdma",
	.listen = "127.0.0.1:0",
	.detail = "RoCE v2",
	.kind = WH_MEMORY_PAGEABLE,
	.devices = true,
	.missing = missing_rdma,
};
const struct route route_gpu_rdma = {
	.name = "rdma",
	.require = "rdma",
	.listen = "127.0.0.1:0",
	.detail = "RoCE v2, dmabuf",
	.kind = WH_MEMORY_DEVICE,
	.devices = true,
	.missing = missing_gpu_rdma,
};
const struct route needs_root = { .name = "root", .missing = missing_root };

/* ---- the main program -------------------------------------------------- */

static int64_t limit_quiet, limit; /* ns: the deadline by quiet_now(), by now() */

static void too_long(int signal)
{
	static const char text[] = "\nthe test above ran into its time limit\n";

	(void)signal;
	if (quiet_now() < limit_quiet && now() < limit) {
		alarm(1);
		return;
	}
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(2);
	_exit(1);
}

void harness_limit(unsigned int seconds)
{
	/* Real devices (TEST_RDMA) are the lab's, whose CPUs are emulated. */
	seconds *= SCALE(1, 4) * (getenv("TEST_RDMA") ? 4 : 1);
	limit_quiet = quiet_now() + seconds * SECOND;
	limit = now() + 4 * seconds * SECOND;
	alarm(seconds);
}

/* Only tests over rdma see the devices: the others would open them for nothing. */
static void choose_devices(bool wanted)
{
	const char *names = getenv("TEST_RDMA"), *library = getenv("TEST_VERBS");
	char mine[64];

	if (!wanted || missing_rdma()) {
		setenv("WHERRY_RDMA", "off", 1);
		return;
	}
	if (!names) {
		names = "fake0,fake1";
		setenv("FAKE_VERBS", names, 1);
		setenv("WHERRY_VERBS", library, 1);
	}
	snprintf(mine, sizeof(mine), "%.*s", (int)strcspn(names, ","), names);
	setenv("WHERRY_RDMA", mine, 1);
	setenv("HARNESS_RDMA", names + strcspn(names, ",") + 1, 1);
}

int harness_begin(void **state)
{
	const struct route *route = *state;

	choose_devices(route && route->devices);
	fds_before = count_fds();
	harness_limit(LIMIT);
	return 0;
}

/* True if this process, for example the engine, has loaded the machine's CUDA driver. */
static bool real_driver(void)
{
	void *library =
		getenv("TEST_CUDA") ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);

	if (library)
		dlclose(library);
	return library;
}

int harness_end(void **state)
{
	unsigned int after;

	(void)state;
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i])
			child_kill(children[i]);
	alarm(0);
	/* A real driver opens devices, pipes and sockets at any time, and keeps them open. */
	after = real_driver() ? 0 : count_fds();
	if (after > fds_before) {
		print_error("%u descriptors were open before the test, %u are open now\n",
			    fds_before, after);
		return -1;
	}
	return 0;
}

/* Remove settings of the caller's environment, which would change what is tested. */
static void clean_environment(void)
{
	char name[64];

	for (char **at = environ; *at;) {
		const char *equal = strchr(*at, '=');
		size_t length = equal ? (size_t)(equal - *at) : 0;

		if (strncmp(*at, "WHERRY_", 7) != 0 || length >= sizeof(name)) {
			at++;
			continue;
		}
		memcpy(name, *at, length);
		name[length] = '\0';
		unsetenv(name);
		at = environ;
	}
	if (getenv("TEST_CUDA"))
		setenv("WHERRY_CUDA", getenv("TEST_CUDA"), 1);
}

/* Set where the fake library's devices of this process and of its children meet. */
static void share_world(void)
{
	char path[64];
	int fd = memfd_create("fake-verbs", MFD_CLOEXEC);

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
	setenv("FAKE_VERBS_WORLD", path, 1);
}

int harness_main(int argc, char **argv, const char *group, const struct CMUnitTest *tests,
		 size_t count)
{
	struct CMUnitTest *chosen;
	size_t n = 0;
	int failed;

	signal(SIGPIPE, SIG_IGN);
	if (argc != 3 || strcmp(argv[1], "--child") != 0)
		clean_environment();
	if (argc == 3 && strcmp(argv[1], "--child") == 0)
		return child_main(atoi(argv[2]));
	signal(SIGALRM, too_long);
	share_world();
	chosen = calloc(count, sizeof(*chosen));
	if (!chosen)
		return 1;
	for (size_t i = 0; i < count; i++) {
		const struct route *route = tests[i].initial_state;
		const char *why = route && route->missing ? route->missing() : NULL;

		if (argc > 1 && !strstr(tests[i].name, argv[1]))
			continue;
		/* In cmocka's format, so that the result is counted. */
		if (why) {
			printf("[  SKIPPED ] %s\n%s is left out: %s\n", tests[i].name,
			       tests[i].name, why);
			fflush(stdout); /* before the first fork */
		} else {
			chosen[n++] = tests[i];
		}
	}
	failed = n ? _cmocka_run_group_tests(group, chosen, n, NULL, NULL) : 0;
	free(chosen);
	return n ? failed != 0 : 77;
}

/* ---- children: start and end ------------------------------------------- */

static void copy(char *out, size_t size, const char *text)
{
	if (text && (size_t)snprintf(out, size, "%s", text) >= size)
		fail_msg("too long: %s", text);
}

static void child_lost(struct child *child)
{
	int status = 0;

	if (waitpid(child->pid, &status, WNOHANG) == child->pid && WIFSIGNALED(status))
		fail_msg("child %s died of signal %d", child->name, WTERMSIG(status));
	fail_msg("child %s has gone", child->name);
}

static void send_command(struct child *child, const struct child_command *command)
{
	if (send_all(child->fd, command, sizeof(*command)) != 0)
		child_lost(child);
}

/* Receive the answer and at most `room` bytes of data after it. */
static int receive(struct child *child, struct child_answer *answer, void *data, size_t room)
{
	if (read_all(child->fd, answer, sizeof(*answer)) != 0)
		child_lost(child);
	if (answer->length > room)
		fail_msg("child %s sent too much", child->name);
	if (answer->length && read_all(child->fd, data, answer->length) != 0)
		child_lost(child);
	return answer->status;
}

static int ask(struct child *child, const struct child_command *command,
	       struct child_answer *answer, void *data, size_t room)
{
	send_command(child, command);
	return receive(child, answer, data, room);
}

/* Execute a command that must succeed. */
static uint64_t demand(struct child *child, const struct child_command *command, void *data,
		       size_t room)
{
	struct child_answer answer;
	int error = ask(child, command, &answer, data, room);

	if (error < 0)
		fail_msg("child %s: command %u: %s: %s", child->name, command->op,
			 strerrorname_np(-error), answer.text);
	return answer.value;
}

static void start_engine(struct child *child, const struct child_options *options)
{
	struct child_command command = { .op = CHILD_START };
	struct child_answer answer;
	int error;

	if (options) {
		command.user = options->user;
		command.yama = options->yama;
		copy(command.text, sizeof(command.text), options->listen);
		copy(command.other, sizeof(command.other), options->name);
		for (size_t i = 0; i < 6; i++)
			copy(command.config[i], sizeof(command.config[i]), options->config[i]);
	}
	error = ask(child, &command, &answer, NULL, 0);
	if (error)
		fail_msg("a child could not open its engine: %s: %s", strerrorname_np(-error),
			 answer.text);
	memcpy(child->url, answer.url, sizeof(child->url));
	memcpy(child->name, answer.name, sizeof(child->name));
	child->epoch = answer.value;
}

struct child *child_start(const struct child_options *options)
{
	struct child *child = calloc(1, sizeof(*child));
	int pair[2], slot = 0;

	while (slot < CHILDREN_MAX && children[slot])
		slot++;
	if (!child || slot == CHILDREN_MAX ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		fail_msg("no room for a child");
	child->pid = fork();
	if (child->pid < 0)
		fail_msg("fork: %s", strerror(errno));
	if (child->pid == 0) {
		char number[16];
		char *argv[] = { (char *)"child", (char *)"--child", number, NULL };

		if (strcmp(getenv("WHERRY_RDMA"), "off") != 0)
			setenv("WHERRY_RDMA", getenv("HARNESS_RDMA"), 1);
		snprintf(number, sizeof(number), "%d", dup(pair[1]));
		execv("/proc/self/exe", argv);
		_exit(127);
	}
	close(pair[1]);
	child->fd = pair[0];
	children[slot] = child;
	start_engine(child, options);
	return child;
}

static void forget(struct child *child)
{
	for (int i = 0; i < CHILDREN_MAX; i++)
		if (children[i] == child)
			children[i] = NULL;
	close(child->fd);
	free(child);
}

void child_exit(struct child *child)
{
	struct child_command command = { .op = CHILD_EXIT };
	struct child_answer answer;
	int error = ask(child, &command, &answer, NULL, 0), status = 0;

	if (error)
		fail_msg("child %s could not close its engine: %s: %s", child->name,
			 strerrorname_np(-error), answer.text);
	if (waitpid(child->pid, &status, 0) != child->pid || !WIFEXITED(status) ||
	    WEXITSTATUS(status) != 0)
		fail_msg("child %s ended badly: status %#x", child->name, (unsigned int)status);
	forget(child);
}

void child_kill(struct child *child)
{
	kill(child->pid, SIGKILL);
	waitpid(child->pid, NULL, 0);
	forget(child);
}

void child_stop(struct child *child)
{
	int status;

	kill(child->pid, SIGSTOP);
	waitpid(child->pid, &status, WUNTRACED);
}

void child_continue(struct child *child)
{
	kill(child->pid, SIGCONT);
}

bool child_alive(struct child *child)
{
	int status;

	return waitpid(child->pid, &status, WNOHANG) == 0;
}

/* ---- children: commands ------------------------------------------------ */

int child_memory_at(struct child *child, uint32_t kind, size_t length, const char *location)
{
	struct child_command command = { .op = CHILD_MEMORY, .kind = kind, .length = length };

	snprintf(command.text, sizeof(command.text), "%s", location ? location : "");
	return (int)demand(child, &command, NULL, 0);
}

int child_memory(struct child *child, uint32_t kind, size_t length)
{
	return child_memory_at(child, kind, length, NULL);
}

int child_free(struct child *child, int memory)
{
	struct child_command command = { .op = CHILD_FREE, .index = memory };
	struct child_answer answer;

	return ask(child, &command, &answer, NULL, 0);
}

int child_region(struct child *child, int memory, uint64_t offset, uint64_t length,
		 const char *name, uint32_t access, uint64_t *id)
{
	struct child_command command = { .op = CHILD_REGION,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .access = access };
	struct child_answer answer;
	int region;

	copy(command.text, sizeof(command.text), name);
	region = ask(child, &command, &answer, NULL, 0);
	if (region < 0)
		fail_msg("child %s: no region: %s: %s", child->name, strerrorname_np(-region),
			 answer.text);
	if (id)
		*id = answer.value;
	return region;
}

void child_regions(struct child *child, int memory, uint64_t length, uint64_t count,
		   const char *last)
{
	struct child_command command = {
		.op = CHILD_REGIONS, .index = memory, .length = length, .count = count
	};

	copy(command.text, sizeof(command.text), last);
	demand(child, &command, NULL, 0);
}

int child_unregister(struct child *child, int region)
{
	struct child_command command = { .op = CHILD_UNREGISTER, .index = region };
	struct child_answer answer;

	return ask(child, &command, &answer, NULL, 0);
}

int child_key(struct child *child, int region, void *key, size_t *length)
{
	struct child_command command = { .op = CHILD_KEY, .index = region };
	struct child_answer answer;
	int error = ask(child, &command, &answer, key, *length);

	if (!error)
		*length = answer.length;
	return error;
}

uint64_t child_address(struct child *child, int memory)
{
	struct child_command command = { .op = CHILD_ADDRESS, .index = memory };

	return demand(child, &command, NULL, 0);
}

void child_fill(struct child *child, int memory, uint64_t offset, uint64_t length,
		uint64_t position, uint64_t seed)
{
	struct child_command command = { .op = CHILD_FILL,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .position = position,
					 .seed = seed };

	demand(child, &command, NULL, 0);
}

size_t child_check(struct child *child, int memory, uint64_t offset, uint64_t length,
		   uint64_t position, uint64_t seed)
{
	struct child_command command = { .op = CHILD_CHECK,
					 .index = memory,
					 .offset = offset,
					 .length = length,
					 .position = position,
					 .seed = seed };

	return demand(child, &command, NULL, 0);
}

uint64_t child_sum(struct child *child, int memory, uint64_t offset, uint64_t length)
{
	struct child_command command = {
		.op = CHILD_SUM, .index = memory, .offset = offset, .length = length
	};

	return demand(child, &command, NULL, 0);
}

void child_fetch(struct child *child, int memory, uint64_t offset, uint64_t length, void *out)
{
	struct child_command command = {
		.op = CHILD_FETCH, .index = memory, .offset = offset, .length = length
	};

	demand(child, &command, out, length);
}

int child_notification(struct child *child, int64_t timeout, struct wh_notification *out)
{
	struct child_command command = { .op = CHILD_NOTIFICATION, .timeout = timeout };
	struct child_answer answer;

	return ask(child, &command, &answer, out, sizeof(*out));
}

unsigned int child_fds(struct child *child)
{
	struct child_command command = { .op = CHILD_FDS };

	return (unsigned int)demand(child, &command, NULL, 0);
}

uint64_t child_resident(struct child *child)
{
	struct child_command command = { .op = CHILD_RESIDENT };

	return demand(child, &command, NULL, 0);
}

int child_peer(struct child *child, const char *url, char text[256])
{
	struct child_command command = { .op = CHILD_PEER };
	struct child_answer answer;
	int peer;

	copy(command.text, sizeof(command.text), url);
	peer = ask(child, &command, &answer, NULL, 0);
	if (text)
		memcpy(text, answer.text, sizeof(answer.text));
	return peer;
}

int child_peer_close(struct child *child, int peer)
{
	struct child_command command = { .op = CHILD_PEER_CLOSE, .peer = peer };
	struct child_answer answer;

	return ask(child, &command, &answer, NULL, 0);
}

void child_transfer_send(struct child *child, const struct child_transfer *transfer)
{
	struct child_command command = {
		.op = CHILD_TRANSFER,
		.peer = transfer->peer,
		.index = transfer->region,
		.offset = transfer->local_offset,
		.remote_offset = transfer->remote_offset,
		.length = transfer->length,
		.count = transfer->times ? transfer->times : 1,
		.direction = transfer->op,
		.go = transfer->go,
	};

	copy(command.text, sizeof(command.text), transfer->remote);
	copy(command.other, sizeof(command.other), transfer->notify);
	copy(command.require, sizeof(command.require), transfer->require);
	send_command(child, &command);
}

int child_transfer_receive(struct child *child, struct child_result *result)
{
	struct child_answer answer;
	int status = receive(child, &answer, NULL, 0);

	if (result) {
		result->status = status;
		memcpy(result->text, answer.text, sizeof(result->text));
		memcpy(result->transport, answer.transport, sizeof(result->transport));
		memcpy(result->explain, answer.explain, sizeof(result->explain));
	}
	return status;
}

int child_transfer(struct child *child, const struct child_transfer *transfer,
		   struct child_result *result)
{
	child_transfer_send(child, transfer);
	return child_transfer_receive(child, result);
}
