/* SPDX-License-Identifier: Apache-2.0 */
/* What wherry window check does with other processes: children of fork(), and who is passed a
 * descriptor. None of them may reach the GPU's memory, or take it away from its owner. */
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

/* One that does something when told to, and whose exit status says what it found: 0 nothing. */
struct child {
	pid_t pid;
	int socket; /* the parent's end */
};

static bool start(struct window_try *try, struct child *child,
		  int (*run)(struct window_try *, int, void *), void *arg)
{
	int ends[2];

	if (!window_expect(try, !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
			   "socketpair: %s", strerror(errno)))
		return false;
	child->pid = fork();
	if (!child->pid) {
		close(ends[0]);
		/* Without what exit() runs: that is the parent's. */
		_exit(run(try, ends[1], arg));
	}
	close(ends[1]);
	child->socket = ends[0];
	if (child->pid < 0)
		close(ends[0]);
	return window_expect(try, child->pid > 0, "fork: %s", strerror(errno));
}

static void tell(const struct child *child)
{
	(void)!send(child->socket, "", 1, MSG_NOSIGNAL);
}

static void wait_to_be_told(int end)
{
	char byte;

	(void)!read(end, &byte, 1);
}

/* The exit status of one that has been told; 255: it ended otherwise. */
static int finish(const struct child *child)
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

static const char *finding(int status)
{
	static const char *const words[] = {
		[0] = "is as it should be",
		[REACHED] = "reads through its parent's window",
		[COPIED] = "copies through its parent's window",
		[OPENED] = "opens a window with its parent's engine",
		[TOLD] = "is told of its parent's window",
		[CLOSED] = "closes its parent's window",
	};

	return (size_t)status < sizeof(words) / sizeof(words[0]) ? words[status] :
								   "ended otherwise";
}

/* All that a child could try with what it has of its parent's. */
static int try_inherited(struct window_try *try, int end, void *arg)
{
	struct inherited *i = arg;
	struct wh_window_info info = { .size = sizeof(info) };
	struct wh_window *window = NULL;
	char bytes[64] = "";

	wait_to_be_told(end);
	if (window_place_window(&try->place, 0, 4096, &window) != -EPERM)
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

static void check_child(struct window_try *try, const struct child *child)
{
	int status = finish(child);

	window_expect(try, !status, "a child %s", finding(status));
}

/* The child is there before the window is. */
static void fork_before(struct window_try *try)
{
	struct inherited nothing = { 0 };
	struct wh_window *window;
	struct child child;

	if (!start(try, &child, try_inherited, &nothing))
		return;
	if (window_open_in(try, 0, try->place.length, &window)) {
		window_round_trip(try, window, 0, 0, 100000);
		tell(&child);
		check_child(try, &child);
		/* Its end has closed what it had inherited, and nothing of ours. */
		window_round_trip(try, window, 0, 0, 100000);
		window_close_in(try, window);
	} else {
		finish(&child);
	}
}

/* The window is there before the child is. */
static void fork_after(struct window_try *try)
{
	struct inherited i = { 0 };
	struct child child;

	if (!window_open_in(try, 0, try->place.length, &i.window))
		return;
	i.info = window_info_of(try, i.window);
	if (start(try, &child, try_inherited, &i)) {
		tell(&child);
		window_round_trip(try, i.window, 0, 0, 100000); /* while it tries */
		check_child(try, &child);
		window_round_trip(try, i.window, 0, 0, 100000);
	}
	window_close_in(try, i.window);
}

/* The parent has closed the window and freed the memory when the child tries. */
static int try_freed(struct window_try *try, int end, void *arg)
{
	struct inherited *i = arg;

	(void)try;
	wait_to_be_told(end);
	return i->info.pointer && window_reachable(i->info.pointer) ? REACHED : 0;
}

static void fork_free(struct window_try *try)
{
	struct window_place *place = &try->place;
	struct inherited i = { 0 };
	struct child child;
	void *again = NULL;

	if (!window_open_in(try, 0, place->length, &i.window))
		return;
	i.info = window_info_of(try, i.window);
	if (!start(try, &child, try_freed, &i))
		return;
	window_close_in(try, i.window);
	window_called(try, wh_memory_free(place->engine, place->address), "freeing the memory");
	place->address = NULL;
	if (window_called(try, memory_alloc(place->engine, place->memory, place->length, &again),
			  "allocating again"))
		place->address = again;
	tell(&child);
	check_child(try, &child);
	if (place->address && window_open_in(try, 0, place->length, &i.window)) {
		window_round_trip(try, i.window, 0, 0, 100000);
		window_close_in(try, i.window);
	}
}

/* ---- passing a descriptor -------------------------------------------------------------------- */

/* A range that is pinned without the library, which gives nobody its descriptor. */
struct pinned {
	int fd;
	uint64_t handle, length;
	unsigned char *bytes;
};

static off_t offset_of(const struct pinned *pinned)
{
	return (off_t)(pinned->handle * (uint64_t)sysconf(_SC_PAGESIZE));
}

/* With the old call, which all modules know. */
static bool pin(struct window_try *try, struct pinned *pinned)
{
	uint64_t mask = GDRDRV_GPU_PAGE - 1, address = (uintptr_t)try->place.address;
	struct gdrdrv_pin p = { .address = (address + mask) & ~mask, .size = pinned->length };

	if (!window_expect(try, !ioctl(pinned->fd, GDRDRV_PIN, &p), GDRDRV_NODE ": PIN: %s",
			   strerror(errno)))
		return false;
	pinned->handle = p.handle;
	pinned->bytes = mmap(NULL, pinned->length, PROT_READ | PROT_WRITE, MAP_SHARED, pinned->fd,
			     offset_of(pinned));
	/* By fork() it would be there without a descriptor. */
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

/* With the descriptor and the handle. */
static int try_descriptor(struct window_try *try, int end, void *arg)
{
	struct pinned *pinned = arg;
	struct gdrdrv_info info = { .handle = pinned->handle };
	struct gdrdrv_unpin unpin = { .handle = pinned->handle };
	struct gdrdrv_pin p = { .address = (uintptr_t)try->place.address & ~UINT64_C(65535),
				.size = GDRDRV_GPU_PAGE };
	int fd = receive_descriptor(end);
	void *at;

	if (fd < 0)
		return NOT_PASSED;
	at = mmap(NULL, pinned->length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset_of(pinned));
	if (at != MAP_FAILED && window_reachable(at))
		return MAPPED;
	if (!ioctl(fd, GDRDRV_INFO, &info))
		return INFORMED;
	if (!ioctl(fd, GDRDRV_UNPIN, &unpin))
		return UNPINNED;
	return ioctl(fd, GDRDRV_PIN, &p) ? 0 : PINNED;
}

static void pass(struct window_try *try, struct pinned *pinned)
{
	static const char *const words[] = {
		[0] = "nothing",
		[NOT_PASSED] = "nothing, for it was not passed",
		[MAPPED] = "its memory",
		[INFORMED] = "what it has pinned",
		[UNPINNED] = "its pin away",
		[PINNED] = "a pin of its memory",
	};
	unsigned char sent[4096], got[4096];
	uint64_t number = window_fresh();
	struct child child;
	int status;

	if (!start(try, &child, try_descriptor, pinned))
		return;
	window_expect(try, send_descriptor(child.socket, pinned->fd), "sendmsg: %s",
		      strerror(errno));
	status = finish(&child);
	window_expect(try, !status, "who is passed the descriptor gets %s",
		      (size_t)status < sizeof(words) / sizeof(words[0]) ? words[status] :
									  "it to end otherwise");
	/* The owner's is as good as before. */
	pattern_fill(sent, sizeof(sent), 0, number);
	memcpy(pinned->bytes, sent, sizeof(sent));
	__sync_synchronize();
	memcpy(got, pinned->bytes, sizeof(got));
	window_expect(try, pattern_check(got, sizeof(got), 0, number) == PATTERN_RIGHT,
		      "the owner has lost its mapping to who was passed the descriptor");
}

static void fd_passing(struct window_try *try)
{
	struct pinned pinned = { .fd = -1, .length = 4 * GDRDRV_GPU_PAGE, .bytes = MAP_FAILED };
	struct wh_window_info info;
	struct wh_window *window;

	if (!window_open_in(try, 0, try->place.length, &window))
		return;
	info = window_info_of(try, window);
	window_close_in(try, window);
	if (strcmp(info.backend, "driver") != 0) {
		window_waive(try, "%s: has no descriptor that memory could be mapped by again",
			     info.backend);
		return;
	}
	pinned.fd = open(GDRDRV_NODE, O_RDWR | O_CLOEXEC);
	if (!window_expect(try, pinned.fd >= 0, GDRDRV_NODE ": %s", strerror(errno)))
		return;
	if (pin(try, &pinned))
		pass(try, &pinned);
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
	{ "fork-before", "a child from before the window has none of it", fork_before },
	{ "fork-after", "a child has none of its parent's windows, and does them no harm",
	  fork_after },
	{ "fork-free", "nor has it when they are closed and the memory is freed", fork_free },
	{ "fd-passing", "who is passed /dev/gdrdrv maps and unpins nothing by it", fd_passing },
	{ 0 },
};
