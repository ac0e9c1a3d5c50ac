/* SPDX-License-Identifier: Apache-2.0 */
/* harness.c: the main program of the integration tests
 *
 * Time limits, the check for leaked descriptors, assertions and counts. Routes are in route.c, the
 * test's side of child processes in children.c. */
#include "harness.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "driven.h"

/* Seconds; the default limit of a test. More than PATIENCE: its signal would end a wait that nobody
 * ended, and hide that. */
#define LIMIT 100u

extern char **environ;

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

	if (driven_is_set() && gettid() == getpid()) {
		driven_wait(-1, ms * MS);
		return;
	}
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

unsigned int count_maps(enum harness_maps which)
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned int count = 0;
	char line[PATH_MAX + 128];
	unsigned long inode;

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file))
		count += which == MAPS_ALL ||
			 (sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 && inode > 0);
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

void tell_bytes(const char *said)
{
	static const char *const words[] = { "PATTERN_GOOD", "_check(", "_sum(",
					     "memcmp",       "wrong",   "bytes" };

	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		if (strstr(said, words[i])) {
			print_error("WRONG BYTES\n");
			return;
		}
	}
}

void tell_crash(const char *name, int status)
{
	int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (number && number != SIGKILL && number != SIGTERM && number != SIGALRM &&
	    number != SIGINT && number != SIGHUP && number != SIGPIPE)
		print_error("CRASHED: %s: %s\n", name, strsignal(number));
}

static void want_failed(long long value, long long got, const char *call, const char *file,
			int line)
{
	char wanted[32];

	snprintf(wanted, sizeof(wanted), "%s", value < 0 ? strerrorname_np((int)-value) : "");
	print_error("%s:%d: %s\n\treturned %lld%s%s, wanted %lld %s\n\tthe library says: %s\n",
		    file, line, call, got, got < 0 && got > -4096 ? " " : "",
		    got < 0 && got > -4096 ? strerrorname_np((int)-got) : "", value, wanted,
		    wh_error_text());
	tell_bytes(call);
	_fail(file, line);
}

void want_at(long long value, long long got, const char *call, const char *file, int line)
{
	if (got != value)
		want_failed(value, got, call, file, line);
}

void want_text_at(long long value, const char *word, long long got, const char *call,
		  const char *file, int line)
{
	if (got != value)
		want_failed(value, got, call, file, line);
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

	if (!wanted || route_rdma.missing()) {
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
	children_kill();
	driven_set(NULL); /* that of a test that failed */
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
	/* No peer is lost because the machine is busy. Tests of lost peers set a time of their own.
	 */
	setenv("WHERRY_TIMEOUT", "60000", 1);
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
