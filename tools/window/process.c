/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of wherry window check with other processes: children of fork(), and a process that is
 * passed a descriptor. None may reach the GPU's memory, or take it from its owner. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pattern.h"
#include "window/driver-abi.h"
#include "window/window.h"

/* ---- a child --------------------------------------------------------------------------------- */

/* A child that acts when it gets a byte. Its exit status says what it could do; 0: nothing. */
struct child {
	pid_t pid;
	int socket; /* the parent's end */
};

static bool child_start(struct window_try *try, struct child *child,
			int (*run)(struct window_try *, int, void *), void *arg)
{
	int ends[2];

	if (!window_expect(try, !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
			   "socketpair: %s", strerror(errno)))
		return false;
	child->pid = fork();
	if (!child->pid) {
		close(ends[0]);
		/* _exit(): handlers of exit() belong to the parent. */
		_exit(run(try, ends[1], arg));
	}
	close(ends[1]);
	child->socket = ends[0];
	if (child->pid < 0)
		close(ends[0]);
	return window_expect(try, child->pid > 0, "fork: %s", strerror(errno));
}

static void child_go(const struct child *child)
{
	(void)!send(child->socket, "", 1, MSG_NOSIGNAL);
}

static void child_await_go(int end)
{
	char byte;

	(void)!read(end, &byte, 1);
}

/* Wait for the child. Its exit status; 255: it was killed. */
static int child_finish(const struct child *child)
{
	int status = 0;

	close(child->socket);
	while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* ---- fork() ---------------------------------------------------------------------------------- */

struct inherited {
	struct wh_window *window;
	struct wh_window_info info;
};

enum { REACHED = 1, COPIED, OPENED, TOLD, CLOSED };

static const char *inherited_text(int status)
{
	static const char *const words[] = {
		[0] = "behaves",
		[REACHED] = "reads through its parent's window",
		[COPIED] = "copies through its parent's window",
		[OPENED] = "opens a window with its parent's engine",
		[TOLD] = "queries its parent's window",
		[CLOSED] = "closes its parent's window",
	};

	return (size_t)status < sizeof(words) / sizeof(words[0]) ? words[status] : "was killed";
}

/* All that a child can try with what it inherited. */
static int child_try_inherited(struct window_try *try, int end, void *arg)
{
	struct inherited *i = arg;
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window = NULL;
	char bytes[64] = "";

	child_await_go(end);
	if (window_fixture_window(&try->fixture, 0, 4096, &window) != -EPERM)
		return OPENED;
	if (!i->window)
		return 0;
	if (i->info.pointer && window_reachable(i->info.pointer))
		return REACHED;
	if (wh_window_copy_to(i->window, 0, bytes, sizeof(bytes)) != -EPERM ||
	    wh_window_copy_from(i->window, 0, bytes, sizeof(bytes)) != -EPERM ||
	    wh_window_flush(i->window) != -EPERM)
		return COPIED;
	if (wh_window_info(i->window, &info) != -EPERM)
		return TOLD;
	return wh_window_close(i->window) != -EPERM ? CLOSED : 0;
}

static void child_check(struct window_try *try, const struct child *child)
{
	int status = child_finish(child);

	window_expect(try, !status, "a child %s", inherited_text(status));
}

/* The child starts before the window is opened. */
static void case_fork_before(struct window_try *try)
{
	struct inherited nothing = { 0 };
	struct wh_window *window;
	struct child child;

	if (!child_start(try, &child, child_try_inherited, &nothing))
		return;
	if (window_open_in(try, 0, try->fixture.length, &window)) {
		window_round_trip(try, window, 0, 0, 100000);
		child_go(&child);
		child_check(try, &child);
		/* Its exit closed what it had inherited, and nothing of this process. */
		window_round_trip(try, window, 0, 0, 100000);
		window_close_in(try, window);
	} else {
		child_finish(&child);
	}
}

/* The child starts after the window was opened. */
static void case_fork_after(struct window_try *try)
{
	struct inherited i = { 0 };
	struct child child;

	if (!window_open_in(try, 0, try->fixture.length, &i.window))
		return;
	i.info = window_info_of(try, i.window);
	if (child_start(try, &child, child_try_inherited, &i)) {
		child_go(&child);
		window_round_trip(try, i.window, 0, 0, 100000); /* while it tries */
		child_check(try, &child);
		window_round_trip(try, i.window, 0, 0, 100000);
	}
	window_close_in(try, i.window);
}

/* The child tries after the parent has closed the window and freed the memory. */
static int child_try_freed(struct window_try *try, int end, void *arg)
{
	struct inherited *i = arg;

	(void)try;
	child_await_go(end);
	return i->info.pointer && window_reachable(i->info.pointer) ? REACHED : 0;
}

static void case_fork_free(struct window_try *try)
{
	struct window_fixture *fixture = &try->fixture;
	struct inherited i = { 0 };
	struct child child;
	void *again = NULL;

	if (!window_open_in(try, 0, fixture->length, &i.window))
		return;
	i.info = window_info_of(try, i.window);
	if (!child_start(try, &child, child_try_freed, &i))
		return;
	window_close_in(try, i.window);
	window_called(try, wh_memory_free(fixture->engine, fixture->address), "freeing the memory");
	fixture->address = NULL;
	if (window_called(try,
			  memory_alloc(fixture->engine, fixture->memory, fixture->length, &again),
			  "allocating again"))
		fixture->address = again;
	child_go(&child);
	child_check(try, &child);
	if (fixture->address && window_open_in(try, 0, fixture->length, &i.window)) {
		window_round_trip(try, i.window, 0, 0, 100000);
		window_close_in(try, i.window);
	}
}

/* ---- passing a descriptor -------------------------------------------------------------------- */

/* A range pinned without the library, which gives away no descriptor. */
struct pinned {
	int fd;
	uint64_t handle, length;
	unsigned char *bytes;
};

static off_t pinned_offset(const struct pinned *pinned)
{
	return (off_t)(pinned->handle * (uint64_t)sysconf(_SC_PAGESIZE));
}

/* Pin with the old ioctl, which all versions of the module have. */
static bool pinned_make(struct window_try *try, struct pinned *pinned)
{
	uint64_t mask = GDRDRV_GPU_PAGE - 1, address = (uintptr_t)try->fixture.address;
	struct gdrdrv_pin p = { .address = (address + mask) & ~mask, .size = pinned->length };

	if (!window_expect(try, !ioctl(pinned->fd, GDRDRV_PIN, &p), GDRDRV_NODE ": PIN: %s",
			   strerror(errno)))
		return false;
	pinned->handle = p.handle;
	pinned->bytes = mmap(NULL, pinned->length, PROT_READ | PROT_WRITE, MAP_SHARED, pinned->fd,
			     pinned_offset(pinned));
	/* Else the child would inherit the mapping by fork(). */
	return window_expect(try,
			     pinned->bytes != MAP_FAILED &&
				     !madvise(pinned->bytes, pinned->length, MADV_DONTFORK),
			     GDRDRV_NODE ": mmap: %s", strerror(errno));
}

static bool send_descriptor(int socket, int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .header = { .cmsg_len = CMSG_LEN(sizeof(int)),
				  .cmsg_level = SOL_SOCKET,
				  .cmsg_type = SCM_RIGHTS } };
	char byte = 0;
	struct iovec io = { &byte, 1 };
	struct msghdr message = { .msg_iov = &io,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

static int receive_descriptor(int socket)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec io = { &byte, 1 };
	struct msghdr message = { .msg_iov = &io,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

enum { NOT_PASSED = 1, MAPPED, INFORMED, UNPINNED, PINNED };

/* All that a child can try with the descriptor and the handle. */
static int child_try_descriptor(struct window_try *try, int end, void *arg)
{
	struct pinned *pinned = arg;
	struct gdrdrv_info info = { .handle = pinned->handle };
	struct gdrdrv_unpin unpin = { .handle = pinned->handle };
	struct gdrdrv_pin p = { .address = (uintptr_t)try->fixture.address & ~UINT64_C(65535),
				.size = GDRDRV_GPU_PAGE };
	int fd = receive_descriptor(end);
	void *at;

	if (fd < 0)
		return NOT_PASSED;
	at = mmap(NULL, pinned->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		  pinned_offset(pinned));
	if (at != MAP_FAILED && window_reachable(at))
		return MAPPED;
	if (!ioctl(fd, GDRDRV_INFO, &info))
		return INFORMED;
	if (!ioctl(fd, GDRDRV_UNPIN, &unpin))
		return UNPINNED;
	return ioctl(fd, GDRDRV_PIN, &p) ? 0 : PINNED;
}

static void pinned_pass(struct window_try *try, struct pinned *pinned)
{
	static const char *const words[] = {
		[0] = "nothing",
		[NOT_PASSED] = "nothing, because it was not passed",
		[MAPPED] = "the owner's memory mapped",
		[INFORMED] = "the owner's pins",
		[UNPINNED] = "the owner unpinned",
		[PINNED] = "the owner's memory pinned",
	};
	unsigned char sent[4096], got[4096];
	uint64_t number = window_fresh();
	struct child child;
	int status;

	if (!child_start(try, &child, child_try_descriptor, pinned))
		return;
	window_expect(try, send_descriptor(child.socket, pinned->fd), "sendmsg: %s",
		      strerror(errno));
	status = child_finish(&child);
	window_expect(try, !status, "a process that is passed the descriptor gets %s",
		      (size_t)status < sizeof(words) / sizeof(words[0]) ? words[status] : "killed");
	/* The owner's mapping still works. */
	pattern_fill(sent, sizeof(sent), 0, number);
	memcpy(pinned->bytes, sent, sizeof(sent));
	__sync_synchronize();
	memcpy(got, pinned->bytes, sizeof(got));
	window_expect(
		try, pattern_check(got, sizeof(got), 0, number) == PATTERN_RIGHT,
		"the owner has lost its mapping to the process that was passed the descriptor");
}

static void case_fd_passing(struct window_try *try)
{
	struct pinned pinned = { .fd = -1, .length = 4 * GDRDRV_GPU_PAGE, .bytes = MAP_FAILED };
	struct wh_window_info info;
	struct wh_window *window;

	if (!window_open_in(try, 0, try->fixture.length, &window))
		return;
	info = window_info_of(try, window);
	window_close_in(try, window);
	if (strcmp(info.backend, "driver") != 0) {
		window_waive(try, "%s: has no descriptor by which memory could be mapped",
			     info.backend);
		return;
	}
	pinned.fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC);
	if (!window_expect(try, pinned.fd >= 0, GDRDRV_NODE ": %s", strerror(errno)))
		return;
	if (pinned_make(try, &pinned))
		pinned_pass(try, &pinned);
	if (pinned.bytes != MAP_FAILED)
		munmap(pinned.bytes, pinned.length);
	if (pinned.handle)
		window_expect(try,
			      !ioctl(pinned.fd, GDRDRV_UNPIN,
				     &(struct gdrdrv_unpin){ .handle = pinned.handle }),
			      GDRDRV_NODE ": UNPIN: %s", strerror(errno));
	close(pinned.fd);
}

const struct window_case window_process_cases[] = {
	{ "fork-before", "a child from before the window cannot use it", case_fork_before },
	{ "fork-after", "a child cannot use its parent's windows, and does them no harm",
	  case_fork_after },
	{ "fork-free", "nor after they are closed and the memory is freed", case_fork_free },
	{ "fd-passing", "a process that is passed /dev/gdrdrv maps and unpins nothing",
	  case_fd_passing },
	{ 0 },
};
