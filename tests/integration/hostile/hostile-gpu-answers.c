/* SPDX-License-Identifier: Apache-2.0 */
/* Setup: windows-too waits hostile */
/* hostile-gpu-answers.c: hostile owners of GPU memory
 *
 * Handles that an initiator must not believe: wrong ones, and those of other processes' memory. */
#include "lib/handles.h"
#include "lib/windows.h"
#include "wire/bytes.h"
#include "wire/wire.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LENGTH (4 * MIB)
#define REGION (UINT64_C(7) << 32 | 77)
#define ADDRESS UINT64_C(0x700000000000)

/* ---- wrong answers ----------------------------------------------------- */

enum lie {
	LIE_NONE, /* not a handle */
	LIE_ID,
	LIE_INDEX,
	LIE_SEGMENTS,
	LIE_ADDRESS,
	LIE_SHORT,
	LIE_LONG,
	LIE_NO_DESCRIPTOR,
	LIE_FILE,
	LIE_DEVICE,
	LIE_TYPE,
	LIE_OBJECT, /* an object that was not requested */
	LIE_FABRIC, /* a fabric handle of nothing, to an engine that did not ask for one */
	LIE_CHANGES_TYPE,
	LIE_HUGE,
	LIE_FRAME,
	LIE_CUT_OFF,
	LIE_SILENCE,
	LIE_SIZE, /* a valid handle of less memory */
	LIES,
	LIE_FORGED, /* valid but for the driver's identity of the memory */
};

struct impostor {
	pthread_t thread;
	int listener, unix_listener, alive;
	char url[64], name[64];
	enum lie lie;
	struct wh_exported honest; /* an honest owner's segment, for LIE_SIZE */
	uint8_t device[16];
	uint64_t length;
	_Atomic bool stop;
};

/* Send bytes, with a descriptor unless that is -1. */
static void impostor_send(int socket, const void *bytes, size_t length, int descriptor)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
	}
	sendmsg(socket, &message, MSG_NOSIGNAL);
}

static void impostor_send_handle(int fd, const struct wh_exported *e, int descriptor, size_t cut)
{
	uint8_t bytes[WH_FRAME_HEADER + WH_EXPORTED_MAX];
	size_t length = wh_exported_encode(bytes + WH_FRAME_HEADER, e);

	wh_frame_encode(bytes, &(struct wh_frame){ (uint32_t)length, WH_FRAME_EXPORTED, 0 });
	impostor_send(fd, bytes, WH_FRAME_HEADER + length - cut, descriptor);
}

static void impostor_lie(struct impostor *me, int fd, uint64_t id)
{
	struct wh_exported e = { .id = id,
				 .segments = 1,
				 .type = WH_HANDLE_LEGACY,
				 .address = ADDRESS,
				 .length = me->length,
				 .base = ADDRESS,
				 .size = me->length };
	int file = open("/dev/zero", O_RDWR | O_CLOEXEC), sent = -1;

	memcpy(e.device, me->device, sizeof(e.device));
	memset(e.handle, 0xee, sizeof(e.handle));
	switch (me->lie) {
	case LIE_ID:
		e.id++;
		break;
	case LIE_INDEX:
		e.segments = 9;
		e.index = 5;
		break;
	case LIE_SEGMENTS:
		e.segments = UINT32_MAX;
		e.type = WH_HANDLE_FD;
		sent = file;
		e.length = 1;
		break;
	case LIE_ADDRESS:
		e.address = e.base = ADDRESS - 4096;
		break;
	case LIE_SHORT:
		e.length--;
		break;
	case LIE_LONG:
		e.length += 4096;
		e.size += 8192;
		break;
	case LIE_NO_DESCRIPTOR:
		e.type = WH_HANDLE_FD;
		break;
	case LIE_FILE:
		e.type = WH_HANDLE_FD;
		sent = file;
		break;
	case LIE_DEVICE:
		memset(e.device, 0x55, sizeof(e.device));
		break;
	case LIE_TYPE:
		e.type = 77;
		break;
	case LIE_OBJECT:
		e.type = WH_HANDLE_OBJECT;
		sent = file;
		break;
	case LIE_FABRIC:
		e.type = WH_HANDLE_FABRIC;
		break;
	case LIE_CHANGES_TYPE:
		e.segments = 2;
		e.length = e.size = me->length / 2;
		break;
	case LIE_HUGE:
		e.size = UINT64_MAX - ADDRESS - 5;
		e.type = WH_HANDLE_FD;
		sent = file;
		break;
	case LIE_FORGED:
		e = me->honest;
		e.id = id;
		e.address = ADDRESS;
		e.base = ADDRESS - (me->honest.address - me->honest.base);
		break;
	case LIE_SIZE:
		e = me->honest;
		e.id = id;
		e.address = e.base = ADDRESS;
		e.length = e.size = me->length;
		break;
	default:
		break;
	}
	if (me->lie == LIE_FRAME)
		raw_send_frame(fd, WH_FRAME_EXPORTED, 0, &e, sizeof(e));
	else if (me->lie != LIE_SILENCE)
		impostor_send_handle(fd, &e, sent, me->lie == LIE_CUT_OFF ? 3 : 0);
	if (me->lie == LIE_CHANGES_TYPE) {
		e.index = 1;
		e.type = WH_HANDLE_FD;
		e.address = e.base = ADDRESS + me->length / 2;
		impostor_send_handle(fd, &e, file, 0);
	}
	close(file);
}

static void impostor_welcome(struct impostor *me, int fd)
{
	struct wh_region_record record = { .id = REGION,
					   .address = ADDRESS,
					   .length = me->length,
					   .access = WH_ACCESS_READ | WH_ACCESS_WRITE,
					   .kind = WH_MEMORY_DEVICE,
					   .name = "target" };
	uint8_t bytes[WH_HELLO_MAX], answer[WH_HELLO_MAX];
	struct wh_hello hello, welcome;
	struct wh_proofs proofs;
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0 || wh_hello_decode(bytes, (size_t)length, &hello))
		return;
	welcome = raw_hello(hello.role);
	welcome.session = 5;
	memcpy(welcome.host, hello.host, sizeof(welcome.host));
	snprintf(welcome.socket, sizeof(welcome.socket), "%s", me->name);
	length = raw_welcome(bytes, (size_t)length, &welcome, NULL, answer, &proofs);
	if (length < 0 || raw_send_frame(fd, WH_FRAME_WELCOME, 0, answer, (size_t)length) ||
	    raw_receive_frame(fd, &frame, bytes, sizeof(bytes)) != WH_PROOF_SIZE ||
	    memcmp(bytes, proofs.initiator, WH_PROOF_SIZE) != 0)
		return;
	if (hello.role == WH_ROLE_LOCAL) {
		wh_frame_encode(bytes, &(struct wh_frame){ 0, WH_FRAME_ALIVE, 0 });
		impostor_send(fd, bytes, WH_FRAME_HEADER, me->alive);
	}
	if (hello.role == WH_ROLE_CONTROL) {
		uint8_t region[WH_REGIONS_HEAD + WH_REGION_RECORD_MAX];

		raw_send_frame(fd, WH_FRAME_REGIONS, WH_FRAME_LAST, region,
			       raw_regions(region, &record));
	}
}

/* Answer any frame of a connection. False: hang up. */
static bool impostor_serve(struct impostor *me, int fd)
{
	uint8_t bytes[WH_NOTIFICATION_MAX];
	struct wh_frame frame;
	int length = raw_receive_frame(fd, &frame, bytes, sizeof(bytes));

	if (length < 0)
		return false;
	if (frame.type == WH_FRAME_PING)
		raw_send_frame(fd, WH_FRAME_PONG, 0, bytes, (size_t)length);
	if (frame.type == WH_FRAME_MAP)
		impostor_lie(me, fd, wh_get64(bytes));
	return true;
}

static void *impostor_run(void *arg)
{
	struct impostor *me = arg;
	struct pollfd fds[16] = { { .fd = me->listener, .events = POLLIN },
				  { .fd = me->unix_listener, .events = POLLIN } };
	nfds_t count = 2;

	while (!atomic_load(&me->stop)) {
		poll(fds, count, 10);
		for (nfds_t i = 2; i < count; i++) {
			if (!fds[i].revents || impostor_serve(me, fds[i].fd))
				continue;
			close(fds[i].fd);
			fds[i--] = fds[--count];
		}
		for (nfds_t i = 0; i < 2 && count < 16; i++) {
			int fd = fds[i].revents ? accept4(fds[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;
			struct timeval patience = { .tv_sec = 2 };

			if (fd < 0)
				continue;
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
			impostor_welcome(me, fd);
			fds[count++] = (struct pollfd){ .fd = fd, .events = POLLIN };
		}
	}
	while (count > 2)
		close(fds[--count].fd);
	return NULL;
}

static void impostor_start(struct impostor *me)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un local = { .sun_family = AF_UNIX };
	socklen_t length = sizeof(address);
	uint32_t tid = 5;

	me->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	want(0, bind(me->listener, (struct sockaddr *)&address, sizeof(address)));
	want(0, listen(me->listener, 16));
	want(0, getsockname(me->listener, (struct sockaddr *)&address, &length));
	snprintf(me->url, sizeof(me->url), "wherry://127.0.0.1:%d", ntohs(address.sin_port));
	snprintf(me->name, sizeof(me->name), "wherry-%032x", (unsigned)getpid());
	me->unix_listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	memcpy(local.sun_path + 1, me->name, strlen(me->name));
	want(0, bind(me->unix_listener, (struct sockaddr *)&local,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(me->name))));
	want(0, listen(me->unix_listener, 16));
	me->alive = memfd_create("alive", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	want(0, ftruncate(me->alive, 4096));
	want(sizeof(tid), pwrite(me->alive, &tid, sizeof(tid), 0));
	want(0, fcntl(me->alive, F_ADD_SEALS, F_SEAL_SHRINK));
	want(0, pthread_create(&me->thread, NULL, impostor_run, me));
}

static void impostor_stop(struct impostor *me)
{
	atomic_store(&me->stop, true);
	pthread_join(me->thread, NULL);
	close(me->listener);
	close(me->unix_listener);
	close(me->alive);
}

/* A transfer from our GPU to the impostor's memory is refused, soon. */
static void want_lie_refused(struct impostor *me)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_memory_options on = { .size = sizeof(on),
					.kind = WH_MEMORY_DEVICE,
					.location = "cuda:0" };
	struct wh_batch_options by = { .size = sizeof(by), .require = "cuda" };
	struct wh_transfer one = { .length = 4096, .op = WH_WRITE, .remote = REGION };
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	int64_t before = quiet_now();
	void *memory;
	int error;

	impostor_start(me);
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_memory_alloc(engine, LENGTH, &on, &memory));
	want(0, wh_region_register(engine, memory, LENGTH, NULL, &one.local));
	want(0, wh_peer_open(engine, me->url, NULL, &peer));
	want(0, wh_batch_new(peer, &by, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	one.remote_offset = me->length - 4096;
	want(0, wh_batch_add(batch, &one, 1));
	error = gpu_run(batch);
	want_true(error == -EOPNOTSUPP, "lie %d: %s: %s", me->lie,
		  error ? strerrorname_np(-error) : "taken", wh_batch_error_text(batch));
	want_true(me->lie != LIE_SIZE || strstr(wh_batch_error_text(batch), "bytes, and not"), "%s",
		  wh_batch_error_text(batch));
	want_true(quiet_now() - before < SCALE(4, 15) * SECOND, "lie %d took %lld ms", me->lie,
		  (long long)((quiet_now() - before) / MS));
	/* Transfers between our own regions still work. */
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(one.local));
	want(0, wh_memory_free(engine, memory));
	want(0, wh_engine_close(engine));
	impostor_stop(me);
}

static void initiator__told_lies(void **state)
{
	struct wh_exported honest;
	struct wh_hello welcome;
	struct gpu_pair p;
	size_t before;
	int control, fd;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	control = raw_control(p.child->url, &welcome);
	want(1, raw_count_regions(control));
	fd = handles_connect(&welcome);
	want(0, handles_ask(fd, p.remote.id, 0));
	want(0, handles_answer(fd, &honest));
	want(WH_HANDLE_LEGACY, honest.type);
	before = gpu_free_memory(0);
	for (enum lie l = LIE_NONE; l < LIES; l++) {
		struct impostor me = { .lie = l, .honest = honest, .length = 4 * LENGTH };

		memcpy(me.device, honest.device, sizeof(me.device));
		want_lie_refused(&me);
		want(before, gpu_free_memory(0));
	}
	close(fd);
	close(control);
	gpu_pair_want_well(&p);
	gpu_pair_close(&p);
}

/* ---- handles that name other processes' objects ------------------------ */

/* Offsets of the client and the object within a handle. */
#define HANDLE_CLIENT 48
#define HANDLE_OBJECT 52

/* The handle of this process's own memory. */
static void own_handle(const void *memory, unsigned char handle[64])
{
	void *library = dlopen(getenv("TEST_CUDA"), RTLD_NOW | RTLD_NOLOAD);
	int (*get)(void *out, uint64_t address);

	assert_non_null(library);
	*(void **)&get = dlsym(library, "cuIpcGetMemHandle");
	want(0, get(handle, (uintptr_t)memory));
	dlclose(library);
}

/* Write a few bytes to a peer whose handle opens its memory, but names the object of `client` and
 * `object`. CUDA moves the bytes, and nobody duplicates that object. */
static void want_unread(struct impostor *me, uint32_t client, uint32_t object, struct child *honest,
			int memory)
{
	struct wh_engine_options options = { .size = sizeof(options), .listen = "none" };
	struct wh_batch_options by = { .size = sizeof(by), .require = "cuda" };
	struct wh_transfer one = {
		.length = 8, .op = WH_WRITE, .remote = REGION, .remote_offset = 16
	};
	unsigned char seen[8], sent[8] = { 1, 2, 3, 4, 5, 6, 7, (unsigned char)object };
	unsigned before = stand_in_state().asked;
	struct wh_engine *engine;
	struct wh_batch *batch;
	struct wh_peer *peer;
	char text[1024] = "";

	atomic_store(&me->stop, false);
	memcpy(me->honest.handle + HANDLE_CLIENT, &client, sizeof(client));
	memcpy(me->honest.handle + HANDLE_OBJECT, &object, sizeof(object));
	impostor_start(me);
	want(0, wh_engine_open(&options, &engine));
	want(0, wh_region_register(engine, sent, sizeof(sent), NULL, &one.local));
	want(0, wh_peer_open(engine, me->url, NULL, &peer));
	want(0, wh_batch_new(peer, &by, &batch));
	want(0, wh_batch_add(batch, &one, 1));
	want(0, gpu_run(batch));
	want_true(wh_batch_explain(batch, text, sizeof(text)) > 0, "no explanation");
	want_true(strstr(text, "no CPU window: "), "%s", text);
	want_true(strstr(text, "another process's memory"), "%s", text);
	want(before, stand_in_state().asked);
	want(0, stand_in_state().mapped);
	child_fetch(honest, memory, 16, sizeof(seen), seen);
	want_true(!memcmp(seen, sent, sizeof(seen)), "the bytes are not there");
	want(0, wh_batch_free(batch));
	want(0, wh_peer_close(peer));
	want(0, wh_region_unregister(one.local));
	want(0, wh_engine_close(engine));
	impostor_stop(me);
}

static void initiator__forged_handles(void **state)
{
	unsigned char own[64], third[64];
	struct wh_exported honest, other;
	struct impostor me = { .lie = LIE_FORGED };
	struct wh_hello welcome;
	struct gpu_pair p, q;
	uint32_t client, object;
	int control, fd;

	(void)state;
	gpu_pair_open(&p, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	gpu_pair_open(&q, WH_MEMORY_DEVICE, "cuda:0", WH_MEMORY_DEVICE, "cuda:0", LENGTH, true);
	control = raw_control(q.child->url, &welcome);
	want(1, raw_count_regions(control));
	fd = handles_connect(&welcome);
	want(0, handles_ask(fd, q.remote.id, 0));
	want(0, handles_answer(fd, &other));
	memcpy(third, other.handle, sizeof(third));
	close(fd);
	close(control);
	control = raw_control(p.child->url, &welcome);
	want(1, raw_count_regions(control));
	fd = handles_connect(&welcome);
	want(0, handles_ask(fd, p.remote.id, 0));
	want(0, handles_answer(fd, &honest));
	want(WH_HANDLE_LEGACY, honest.type);
	me.honest = honest;
	me.length = honest.length;
	/* Our own memory. */
	own_handle(p.local, own);
	memcpy(&client, own + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, own + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	/* A third process's memory. */
	memcpy(&client, third + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, third + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	/* Arbitrary numbers. */
	for (uint32_t n = 1; n <= 3; n++)
		want_unread(&me, 0xc1d00000u + n * 7, 0x9e3779b9u * n, p.child, p.memory);
	/* The owner's own numbers: not even these are read. */
	memcpy(&client, honest.handle + HANDLE_CLIENT, sizeof(client));
	memcpy(&object, honest.handle + HANDLE_OBJECT, sizeof(object));
	want_unread(&me, client, object, p.child, p.memory);
	close(fd);
	close(control);
	gpu_pair_close(&q);
	gpu_pair_close(&p);
}

static const struct CMUnitTest tests[] = {
	TEST_NEEDS(initiator__told_lies, needs_fake),
	TEST_NEEDS(initiator__forged_handles, needs_stand_in),
};

HARNESS_MAIN("hostile-gpu-answers", tests)
