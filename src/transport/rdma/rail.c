/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and their ports, which address each has, and queue pairs on them. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "util/clock.h"

#define GIDS_MOST 256u /* of a port's table, how many are looked at */
#define RETRIES 6 /* 7 is for ever on some NICs */

/* ---- addresses ------------------------------------------------------------------------------- */

static bool is_mapped(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid, prefix, sizeof(prefix));
}

static bool is_link_local(const uint8_t gid[16])
{
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* RoCE: routable before not, IPv4 before IPv6, an address of the network's before the link's own.
 */
static int rank(const struct ibv_gid_entry *entry)
{
	int version = entry->gid_type == IBV_GID_ROCE_V2 ? 4 : 0;

	return version + (is_mapped(entry->gid.raw) ? 3 : is_link_local(entry->gid.raw) ? 1 : 2);
}

static int choose_gid(struct rdma_rail *rail, bool ethernet, int entries, struct ibv_gid_entry *out)
{
	const struct rdma_nic *nic = rail->nic;
	struct ibv_gid_entry entry;
	int best = 0;

	if (rail->wanted_gid >= 0 || !ethernet) {
		unsigned index = rail->wanted_gid >= 0 ? (unsigned)rail->wanted_gid : 0;

		if (!wh_verbs_gid(nic->rdma->verbs, nic->context, nic->name, rail->port, index,
				  out))
			return 0;
		snprintf(rail->why, WH_REFUSAL,
			 "%s has no GID with index %u; ibv_devinfo -v shows those it has",
			 rail->name, index);
		return -ENOENT;
	}
	for (unsigned i = 0; (int)i < entries && i < GIDS_MOST; i++) {
		if (wh_verbs_gid(nic->rdma->verbs, nic->context, nic->name, rail->port, i,
				 &entry) ||
		    rank(&entry) <= best)
			continue;
		best = rank(&entry);
		*out = entry;
	}
	if (best)
		return 0;
	snprintf(rail->why, WH_REFUSAL, "%s has no address (GID): give its network interface one",
		 rail->name);
	return -EADDRNOTAVAIL;
}

/* The first partition that the port is in, a full member of if there is one. */
static void choose_pkey(struct rdma_rail *rail, unsigned entries)
{
	const struct rdma_nic *nic = rail->nic;
	uint16_t key;

	rail->pkey_index = 0;
	rail->end.pkey = 0;
	for (unsigned i = 0; i < entries && i < UINT16_MAX; i++) {
		if (nic->rdma->verbs->query_pkey(nic->context, rail->port, (int)i, &key))
			continue;
		key = ntohs(key);
		if (!(key & 0x7fff) || (rail->end.pkey && !(key & 0x8000)))
			continue;
		rail->pkey_index = (uint16_t)i;
		rail->end.pkey = key;
		if (key & 0x8000)
			return;
	}
}

/* Look at the port anew. Under rdma.lock, save while it is opened. */
static void refresh(struct rdma_rail *rail)
{
	const struct rdma_nic *nic = rail->nic;
	int reads = nic->attributes.max_qp_rd_atom,
	    initiator_depth = nic->attributes.max_qp_init_rd_atom;
	struct ibv_port_attr port = { 0 };
	struct ibv_gid_entry gid;
	int error = nic->rdma->verbs->query_port(nic->context, rail->port, &port);
	bool ethernet = port.link_layer == IBV_LAYER_ETHERNET;

	rail->usable = false;
	memset(&rail->end, 0, sizeof(rail->end));
	if (error) {
		snprintf(rail->why, WH_REFUSAL, "%s: ibv_query_port: %s", rail->name,
			 strerror(error));
		return;
	}
	if (port.state != IBV_PORT_ACTIVE) {
		snprintf(rail->why, WH_REFUSAL,
			 "%s is not active: its cable or network interface is down", rail->name);
		return;
	}
	if (choose_gid(rail, ethernet, port.gid_tbl_len, &gid))
		return;
	choose_pkey(rail, port.pkey_tbl_len);
	if (!ethernet && !rail->end.pkey) {
		snprintf(rail->why, WH_REFUSAL, "%s is in no partition: see the subnet manager's",
			 rail->name);
		return;
	}
	rail->end.link = ethernet ? WH_RDMA_ETHERNET : WH_RDMA_INFINIBAND;
	rail->end.gid_type = ethernet ? (uint8_t)gid.gid_type : 0;
	rail->end.mtu = (uint8_t)port.active_mtu;
	rail->end.responder_resources = (uint8_t)(reads < 1          ? 1 :
						  reads > RDMA_READS ? RDMA_READS :
								       reads);
	rail->end.initiator_depth = (uint8_t)(initiator_depth < 1          ? 1 :
					      initiator_depth > RDMA_READS ? RDMA_READS :
									     initiator_depth);
	rail->end.lid = port.lid;
	memcpy(rail->end.gid, gid.gid.raw, sizeof(rail->end.gid));
	memcpy(rail->end.name, rail->name, sizeof(rail->end.name));
	rail->gid_index = (uint8_t)gid.gid_index;
	rail->routed = ethernet || !port.lid || (port.flags & 1); /* IBV_QPF_GRH_REQUIRED */
	rail->message = port.max_msg_sz ? port.max_msg_sz : 1u << 30;
	rail->usable = true;
}

bool rdma_rail_look(struct rdma_rail *rail, struct rdma_rail *copy, char why[WH_REFUSAL])
{
	struct rdma *rdma = rail->nic->rdma;

	pthread_mutex_lock(&rdma->lock);
	/* One that was down may have come up without an event that we saw. */
	if (!rail->usable)
		refresh(rail);
	*copy = *rail;
	pthread_mutex_unlock(&rdma->lock);
	if (!copy->usable)
		memcpy(why, copy->why, WH_REFUSAL);
	return copy->usable;
}

static const char *layer(const struct wh_rdma_end *end)
{
	static const char *const names[] = { "InfiniBand", "RoCE v1", "RoCE v2" };

	return names[end->gid_type];
}

/* Could packets find the way? Whether they do is seen when they are sent. */
static bool compatible(const struct wh_rdma_end *mine, const struct wh_rdma_end *other,
		       char why[WH_REFUSAL])
{
	if (mine->link != other->link || mine->gid_type != other->gid_type) {
		snprintf(why, WH_REFUSAL, "another fabric: %.60s here speaks %s, %.60s there %s",
			 mine->name, layer(mine), other->name, layer(other));
		return false;
	}
	if (mine->link == WH_RDMA_ETHERNET && is_mapped(mine->gid) != is_mapped(other->gid)) {
		snprintf(why, WH_REFUSAL,
			 "%.35s here and %.35s there have addresses of different families; choose "
			 "a GID "
			 "with the knob rdma (NAME:PORT:INDEX)",
			 mine->name, other->name);
		return false;
	}
	if (mine->link == WH_RDMA_INFINIBAND && (mine->pkey ^ other->pkey) & 0x7fff) {
		snprintf(why, WH_REFUSAL, "%s here is in partition %#x, %s there in %#x",
			 mine->name, mine->pkey, other->name, other->pkey);
		return false;
	}
	return true;
}

/* Do both lie in one IPv4 network of the usual size, or one InfiniBand subnet or IPv6 network? */
static bool near(const struct wh_rdma_end *mine, const struct wh_rdma_end *other)
{
	return !memcmp(mine->gid, other->gid, is_mapped(mine->gid) ? 15 : 8);
}

/* Of those that reach the initiator's rail: one of the same network before others, the one with the
 * same index before those behind it; each turn the next of them. */
struct rdma_rail *rdma_rail_for(struct rdma *rdma, const struct wh_rdma_connect *wanted,
				struct rdma_rail *copy, char why[WH_REFUSAL])
{
	unsigned all = rdma->rail_count, count = 0, turn;
	struct rdma_rail looks[RDMA_RAILS];
	uint8_t order[RDMA_RAILS];

	snprintf(why, WH_REFUSAL, "no RDMA device here");
	for (unsigned far = 0; far < 2; far++)
		for (unsigned i = 0; i < all; i++) {
			unsigned n = (wanted->index + i) % all;

			if (rdma_rail_look(&rdma->rails[n], &looks[n], why) &&
			    compatible(&looks[n].end, &wanted->end, why) &&
			    near(&looks[n].end, &wanted->end) == !far)
				order[count++] = (uint8_t)n;
		}
	if (!count)
		return NULL;
	turn = order[wanted->turn % count];
	*copy = looks[turn];
	return &rdma->rails[turn];
}

/* ---- events ---------------------------------------------------------------------------------- */

static void port_changed(struct rdma_nic *nic, uint8_t port, int event)
{
	struct rdma *rdma = nic->rdma;
	char why[WH_REFUSAL] = "";
	struct wh_rdma_end before;

	for (unsigned i = 0; i < rdma->rail_count; i++) {
		struct rdma_rail *rail = &rdma->rails[i];

		if (rail->nic != nic || rail->port != port)
			continue;
		pthread_mutex_lock(&rdma->lock);
		before = rail->end;
		if (event == IBV_EVENT_PORT_ERR) { /* what a query says may come later */
			rail->usable = false;
			snprintf(rail->why, WH_REFUSAL, "%s has gone down", rail->name);
		} else {
			refresh(rail);
		}
		if (!rail->usable)
			memcpy(why, rail->why, sizeof(why));
		else if (memcmp(before.gid, rail->end.gid, sizeof(before.gid)) ||
			 before.lid != rail->end.lid)
			snprintf(why, sizeof(why), "%s has another address", rail->name);
		pthread_mutex_unlock(&rdma->lock);
		wh_log_line(&rdma->engine->log, "rdma: %s", *why ? why : "a port is up again");
	}
	if (*why)
		rdma_rail_lost(rdma, nic, port, why);
	else
		rdma_rail_back(rdma, nic, port);
}

static void events_ready(struct wh_source *source, uint32_t events)
{
	struct rdma_nic *nic = wh_container(source, struct rdma_nic, events);
	const struct wh_verbs *verbs = nic->rdma->verbs;
	struct ibv_async_event event;
	char why[WH_REFUSAL];

	while (!verbs->get_async_event(nic->context, &event)) {
		int port = event.element.port_num, type = event.event_type;

		/* A queue pair that is to be destroyed waits for this. */
		verbs->ack_async_event(&event);
		switch (type) {
		case IBV_EVENT_PORT_ERR:
		case IBV_EVENT_PORT_ACTIVE:
		case IBV_EVENT_LID_CHANGE:
		case IBV_EVENT_GID_CHANGE:
			port_changed(nic, (uint8_t)port, type);
			break;
		case IBV_EVENT_DEVICE_FATAL:
			snprintf(why, sizeof(why), "%s has failed, or been removed", nic->name);
			rdma_rail_lost(nic->rdma, nic, 0, why);
			break;
		default: /* a queue pair's errors are seen in its completions, or by the watchdog */
			break;
		}
	}
	/* One that has been removed is ready for ever. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		wh_loop_remove(&nic->rdma->engine->loops[0], source);
		source->fd = -1;
	}
}

/* ---- devices --------------------------------------------------------------------------------- */

/* One entry of the knob `rdma`: a device, a port (0: all), an index into its GIDs (-1: chosen). */
struct chosen {
	char name[WH_VERBS_NAME];
	unsigned port;
	int gid;
	bool found;
};

static int parse_chosen(const char *text, size_t length, struct chosen *out)
{
	char entry[WH_VERBS_NAME + 16], *colon, *end;
	unsigned long number;

	*out = (struct chosen){ .gid = -1 };
	if (length >= sizeof(entry))
		return -EINVAL;
	memcpy(entry, text, length);
	entry[length] = 0;
	colon = strchr(entry, ':');
	if (colon) {
		*colon++ = 0;
		number = strtoul(colon, &end, 10);
		if (end == colon || number < 1 || number > 255 || (*end && *end != ':'))
			return -EINVAL;
		out->port = (unsigned)number;
		if (*end) {
			colon = end + 1;
			number = strtoul(colon, &end, 10);
			if (end == colon || *end || number > 255)
				return -EINVAL;
			out->gid = (int)number;
		}
	}
	if (!*entry || strlen(entry) >= sizeof(out->name))
		return -EINVAL;
	memcpy(out->name, entry, strlen(entry) + 1);
	return 0;
}

static void nic_close(struct rdma_nic *nic)
{
	const struct wh_verbs *verbs = nic->rdma->verbs;

	if (nic->notifications)
		verbs->destroy_comp_channel(nic->notifications);
	if (nic->idle)
		verbs->destroy_cq(nic->idle);
	if (nic->pd)
		verbs->dealloc_pd(nic->pd);
	if (nic->context)
		verbs->close_device(nic->context);
	free(nic);
}

static int nic_fail(struct rdma_nic *nic, const char *call)
{
	int error = errno ? errno : EIO;
	const char *hint = error == EACCES || error == EPERM ?
				   ": no permission on /dev/infiniband, or not in this container" :
			   error == ENOMEM ? ": ulimit -l is too low, or there is no memory" :
					     "";

	error = wh_fail(error, "%s: %s: %s%s", nic->name, call, strerror(error), hint);
	nic_close(nic);
	return error;
}

static int nic_open(struct rdma *rdma, struct ibv_device *device, struct rdma_nic **out)
{
	const struct wh_verbs *verbs = rdma->verbs;
	struct rdma_nic *nic = calloc(1, sizeof(*nic));
	uint64_t most;
	int error;

	if (!nic)
		return wh_fail(ENOMEM, "rdma: no memory");
	nic->rdma = rdma;
	nic->events.fd = nic->notifications_source.fd = -1;
	snprintf(nic->name, sizeof(nic->name), "%s", verbs->get_device_name(device));
	nic->context = verbs->open_device(device);
	if (!nic->context)
		return nic_fail(nic, "ibv_open_device");
	error = verbs->query_device(nic->context, &nic->attributes);
	errno = error;
	if (error)
		return nic_fail(nic, "ibv_query_device");
	nic->pd = verbs->alloc_pd(nic->context);
	if (!nic->pd)
		return nic_fail(nic, "ibv_alloc_pd");
	nic->idle = verbs->create_cq(nic->context, 1, NULL, NULL, 0);
	if (!nic->idle)
		return nic_fail(nic, "ibv_create_cq");
	nic->notifications = verbs->create_comp_channel(nic->context);
	if (!nic->notifications)
		return nic_fail(nic, "ibv_create_comp_channel");
	nic->gather = nic->attributes.max_sge < 1 ? 1 :
		      nic->attributes.max_sge < (int)RDMA_GATHER ?
						    (uint32_t)nic->attributes.max_sge :
						    RDMA_GATHER;
	most = nic->attributes.max_mr_size;
	nic->chunk = RDMA_CHUNK;
	while (most && nic->chunk > most)
		nic->chunk /= 2;
	*out = nic;
	return 0;
}

static void add_rails(struct rdma *rdma, struct rdma_nic *nic, const struct chosen *chosen)
{
	for (unsigned port = 1; port <= nic->attributes.phys_port_cnt; port++) {
		struct rdma_rail *rail = &rdma->rails[rdma->rail_count];

		if ((chosen && chosen->port && chosen->port != port) ||
		    rdma->rail_count == RDMA_RAILS)
			continue;
		rail->nic = nic;
		rail->port = (uint8_t)port;
		rail->wanted_gid = chosen ? chosen->gid : -1;
		snprintf(rail->name, sizeof(rail->name), "%.58s:%u", nic->name, port);
		refresh(rail);
		rdma->rail_count++;
	}
}

static int add_nic(struct rdma *rdma, struct ibv_device *device, const struct chosen *chosen)
{
	struct rdma_nic *nic = NULL;
	int error;

	for (unsigned i = 0; i < rdma->nic_count; i++)
		if (!strcmp(rdma->nics[i]->name, rdma->verbs->get_device_name(device)))
			nic = rdma->nics[i];
	if (!nic && rdma->nic_count == RDMA_NICS)
		return 0;
	if (!nic) {
		error = nic_open(rdma, device, &nic);
		if (error)
			return error;
		nic->index = rdma->nic_count;
		rdma->nics[rdma->nic_count++] = nic;
	}
	add_rails(rdma, nic, chosen);
	return 0;
}

/* The devices of the list that the knob names, in its order; all of them if it names none. */
static int add_nics(struct rdma *rdma, struct ibv_device **list)
{
	const char *setting = rdma->engine->config.text[WH_SETTING_RDMA];
	int error = -ENODEV;

	for (int i = 0; !*setting && list[i]; i++) {
		/* One that cannot be opened is no reason not to use the others. */
		int trouble = add_nic(rdma, list[i], NULL);

		error = rdma->rail_count ? 0 : trouble;
	}
	for (const char *at = setting; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t length = strcspn(at, ",");
		struct chosen chosen;

		if (parse_chosen(at, length, &chosen))
			return wh_fail(
				EINVAL,
				"rdma=%.60s: wants NAME[:PORT[:GID INDEX]] with commas between, "
				"such as mlx5_0:1:3",
				setting);
		error = 0;
		for (int i = 0; list[i] && !error && !chosen.found; i++) {
			chosen.found = !strcmp(chosen.name, rdma->verbs->get_device_name(list[i]));
			if (chosen.found)
				error = add_nic(rdma, list[i], &chosen);
		}
		if (!error && !chosen.found)
			error = wh_fail(
				ENODEV,
				"rdma=%.60s: there is no device %s here; ibv_devices lists them",
				setting, chosen.name);
		if (error)
			return error;
	}
	return error;
}

/* Where the kernel has no RDMA device the library need not be loaded to find out. */
static bool kernel_has_none(void)
{
	DIR *directory = opendir("/sys/class/infiniband");
	struct dirent *entry;
	bool none = true;

	while (directory && none && (entry = readdir(directory)))
		none = entry->d_name[0] == '.';
	if (directory)
		closedir(directory);
	return none;
}

/* So that a NIC has given up by the end of the knob `timeout`: it waits up to four times as long as
 * it is told, and so often. Bounded to 67 ms and 4.3 s. */
static uint8_t ack_timeout(const struct wh_engine *engine)
{
	int64_t most = engine->config.number[WH_SETTING_TIMEOUT] * WH_MS / (RETRIES + 1);
	uint8_t exponent = 14;

	while (exponent < 20 && (INT64_C(4096) << (exponent + 1)) <= most)
		exponent++;
	return exponent;
}

static int listen_to(const struct rdma_nic *nic, struct wh_source *source, int fd)
{
	int error;

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		return wh_fail(errno, "%s: its events: %s", nic->name, strerror(errno));
	source->fd = fd;
	error = wh_loop_add(&nic->rdma->engine->loops[0], source, EPOLLIN);
	if (error)
		source->fd = -1;
	return error;
}

int rdma_rails_open(struct rdma *rdma)
{
	struct wh_engine *engine = rdma->engine;
	const char *library = engine->config.text[WH_SETTING_VERBS];
	const char *setting = engine->config.text[WH_SETTING_RDMA];
	struct ibv_device **list;
	int count = 0, error;

	if (!strcmp(setting, "off") || !strcmp(setting, "no"))
		return wh_fail(ENODEV, "switched off by the knob rdma (WHERRY_RDMA)");
	if (!*library && kernel_has_none())
		return wh_fail(ENODEV,
			       "the kernel has no RDMA device (/sys/class/infiniband is empty)");
	error = wh_verbs_open(library, &rdma->verbs);
	if (error)
		return error;
	rdma->ack_timeout = ack_timeout(engine);
	list = rdma->verbs->get_device_list(&count);
	if (!list || !count) {
		/* The kernel has some, or somebody has named the library: a surprise. */
		error = wh_fail(ENOENT, "libibverbs finds no RDMA device; ibv_devices lists them");
		if (list)
			rdma->verbs->free_device_list(list);
		return error;
	}
	error = add_nics(rdma, list);
	rdma->verbs->free_device_list(list);
	if (!error)
		rdma_affinity_open(rdma);
	if (!error && !rdma->rail_count)
		error = wh_fail(ENXIO, "rdma=%.60s: the device has no such port", setting);
	for (unsigned i = 0; i < rdma->nic_count && !error; i++) {
		struct rdma_nic *nic = rdma->nics[i];

		nic->events.ready = events_ready;
		nic->notifications_source.ready = rdma_notifications_ready;
		error = listen_to(nic, &nic->events, nic->context->async_fd);
		if (!error)
			error = listen_to(nic, &nic->notifications_source, nic->notifications->fd);
	}
	return error;
}

static void stop_events(void *argument)
{
	struct rdma *rdma = argument;

	for (unsigned i = 0; i < rdma->nic_count; i++) {
		struct rdma_nic *nic = rdma->nics[i];

		if (nic->events.fd >= 0)
			wh_loop_remove(&rdma->engine->loops[0], &nic->events);
		if (nic->notifications_source.fd >= 0)
			wh_loop_remove(&rdma->engine->loops[0], &nic->notifications_source);
	}
}

void rdma_rails_close(struct rdma *rdma)
{
	wh_loop_call(&rdma->engine->loops[0], stop_events, rdma);
	rdma_affinity_close(rdma);
	while (rdma->nic_count)
		nic_close(rdma->nics[--rdma->nic_count]);
	wh_verbs_close(rdma->verbs);
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static int qp_fail(const struct rdma_rail *rail, const char *call, int error, char why[WH_REFUSAL])
{
	snprintf(why, WH_REFUSAL, "%s: %s: %s%s", rail->name, call, strerror(error),
		 error == ENOMEM ? " (ulimit -l, or all of its queue pairs are taken)" : "");
	return -error;
}

static int qp_make(const struct rdma_rail *rail, struct ibv_qp_init_attr *wanted,
		   unsigned int access, struct ibv_qp **out, char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = rail->nic->rdma->verbs;
	struct ibv_qp_attr first = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = rail->pkey_index,
		.port_num = rail->port,
		.qp_access_flags = access,
	};
	struct ibv_qp *qp = verbs->create_qp(rail->nic->pd, wanted);
	int error;

	if (!qp && wanted->cap.max_inline_data) {
		wanted->cap.max_inline_data = 0;
		qp = verbs->create_qp(rail->nic->pd, wanted);
	}
	if (!qp)
		return qp_fail(rail, "ibv_create_qp", errno ? errno : EIO, why);
	error = verbs->modify_qp(
		qp, &first, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error) {
		verbs->destroy_qp(qp);
		return qp_fail(rail, "ibv_modify_qp to INIT", error, why);
	}
	*out = qp;
	return 0;
}

int rdma_qp_new(const struct rdma_rail *rail, struct ibv_cq *cq, uint32_t depth,
		struct ibv_qp **out, uint32_t *inlined, char why[WH_REFUSAL])
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = depth,
			 .max_recv_wr = 1,
			 .max_send_sge = rail->nic->gather,
			 .max_recv_sge = 1,
			 .max_inline_data = RDMA_INLINE },
	};
	int error = qp_make(rail, &wanted, 0, out, why); /* only the owner's end answers */

	*inlined = wanted.cap.max_inline_data;
	return error;
}

int rdma_qp_new_answering(const struct rdma_rail *rail, struct ibv_cq *receives,
			  struct ibv_qp **out, char why[WH_REFUSAL])
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = rail->nic->idle,
		.recv_cq = receives,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = WH_RDMA_RING_SLOTS,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};

	return qp_make(rail, &wanted, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, out, why);
}

/* How packets find the other end. */
static void address(const struct rdma_rail *rail, const struct wh_rdma_end *mine,
		    const struct wh_rdma_end *other, struct ibv_ah_attr *out)
{
	const int64_t *number = rail->nic->rdma->engine->config.number;

	out->port_num = rail->port;
	out->dlid = other->lid;
	out->sl = (uint8_t)number[WH_SETTING_RDMA_SL];
	/* Within an InfiniBand subnet the LID is enough. */
	if (!rail->routed && other->lid && !memcmp(mine->gid, other->gid, 8))
		return;
	out->is_global = 1;
	memcpy(out->grh.dgid.raw, other->gid, sizeof(other->gid));
	out->grh.sgid_index = rail->gid_index;
	out->grh.hop_limit = 64;
	out->grh.traffic_class = (uint8_t)number[WH_SETTING_RDMA_CLASS];
}

static uint8_t least(uint8_t a, uint8_t b)
{
	return a < b ? a : b;
}

int rdma_qp_connect(const struct rdma_rail *rail, struct ibv_qp *qp, const struct wh_rdma_end *mine,
		    const struct wh_rdma_end *other, char why[WH_REFUSAL])
{
	const struct wh_verbs *verbs = rail->nic->rdma->verbs;
	struct ibv_qp_attr attributes = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = least(mine->mtu, other->mtu),
		.dest_qp_num = other->qp,
		.rq_psn = other->psn,
		.max_dest_rd_atomic = least(mine->responder_resources, other->initiator_depth),
		.min_rnr_timer = 12,
	};
	int error;

	if (!compatible(mine, other, why))
		return -EOPNOTSUPP;
	address(rail, mine, other, &attributes.ah_attr);
	error = verbs->modify_qp(qp, &attributes,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER);
	if (error)
		return qp_fail(rail, "ibv_modify_qp to RTR", error, why);
	attributes = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = mine->psn,
		.timeout = rail->nic->rdma->ack_timeout,
		.retry_cnt = RETRIES,
		.rnr_retry = RETRIES,
		.max_rd_atomic = least(mine->initiator_depth, other->responder_resources),
	};
	error = verbs->modify_qp(qp, &attributes,
				 IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC);
	return error ? qp_fail(rail, "ibv_modify_qp to RTS", error, why) : 0;
}
