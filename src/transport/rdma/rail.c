/* SPDX-License-Identifier: Apache-2.0 */
/* rdma: NICs and their ports (rails): the address (GID) of each port, and its events. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rdma/rdma.h"
#include "transport/rdma/server.h"
#include "util/clock.h"

#define GIDS_MOST 256u /* of a port's table, that are examined */

/* ---- addresses ------------------------------------------------------------------------------- */

static bool gid_is_ipv4(const uint8_t gid[16])
{
	static const uint8_t prefix[12] = { [10] = 0xff, [11] = 0xff };

	return !memcmp(gid, prefix, sizeof(prefix));
}

static bool gid_is_link_local(const uint8_t gid[16])
{
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* RoCE v2 before v1, IPv4 before IPv6, global addresses before link-local ones. */
static int gid_rank(const struct ibv_gid_entry *entry)
{
	int version = entry->gid_type == IBV_GID_ROCE_V2 ? 4 : 0;

	return version + (gid_is_ipv4(entry->gid.raw)       ? 3 :
			  gid_is_link_local(entry->gid.raw) ? 1 :
							      2);
}

static int rail_choose_gid(struct rdma_rail *rail, bool ethernet, int entries,
			   struct ibv_gid_entry *out)
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
		    gid_rank(&entry) <= best)
			continue;
		best = gid_rank(&entry);
		*out = entry;
	}
	if (best)
		return 0;
	snprintf(rail->why, WH_REFUSAL, "%s has no address (GID): give its network interface one",
		 rail->name);
	return -EADDRNOTAVAIL;
}

/* Choose the first partition with full membership, or else the first. */
static void rail_choose_pkey(struct rdma_rail *rail, unsigned entries)
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

/* Query the port. Under rdma.lock, except while the engine opens. */
static void rail_refresh(struct rdma_rail *rail)
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
	if (rail_choose_gid(rail, ethernet, port.gid_tbl_len, &gid))
		return;
	rail_choose_pkey(rail, port.pkey_tbl_len);
	if (!ethernet && !rail->end.pkey) {
		snprintf(rail->why, WH_REFUSAL,
			 "%s is in no partition: see the subnet manager's configuration",
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

bool rdma_rail_query(struct rdma_rail *rail, struct rdma_rail *copy, char why[WH_REFUSAL])
{
	struct rdma *rdma = rail->nic->rdma;

	pthread_mutex_lock(&rdma->lock);
	/* A port may have come up without an event that we saw. */
	if (!rail->usable)
		rail_refresh(rail);
	*copy = *rail;
	pthread_mutex_unlock(&rdma->lock);
	if (!copy->usable)
		memcpy(why, copy->why, WH_REFUSAL);
	return copy->usable;
}

static const char *end_layer(const struct wh_rdma_end *end)
{
	static const char *const names[] = { "InfiniBand", "RoCE v1", "RoCE v2" };

	return names[end->gid_type];
}

bool rdma_ends_are_compatible(const struct wh_rdma_end *local, const struct wh_rdma_end *remote,
			      char why[WH_REFUSAL])
{
	if (local->link != remote->link || local->gid_type != remote->gid_type) {
		snprintf(why, WH_REFUSAL, "another fabric: %.60s here speaks %s, %.60s there %s",
			 local->name, end_layer(local), remote->name, end_layer(remote));
		return false;
	}
	if (local->link == WH_RDMA_ETHERNET &&
	    gid_is_ipv4(local->gid) != gid_is_ipv4(remote->gid)) {
		snprintf(why, WH_REFUSAL,
			 "%.35s here and %.35s there have addresses of different families; choose "
			 "a GID "
			 "with the setting rdma (NAME:PORT:INDEX)",
			 local->name, remote->name);
		return false;
	}
	if (local->link == WH_RDMA_INFINIBAND && (local->pkey ^ remote->pkey) & 0x7fff) {
		snprintf(why, WH_REFUSAL, "%s here is in partition %#x, %s there in %#x",
			 local->name, local->pkey, remote->name, remote->pkey);
		return false;
	}
	return true;
}

/* Both are in one IPv4 /24, one IPv6 /64, or one InfiniBand subnet. */
static bool ends_are_near(const struct wh_rdma_end *local, const struct wh_rdma_end *remote)
{
	return !memcmp(local->gid, remote->gid, gid_is_ipv4(local->gid) ? 15 : 8);
}

/* Of the rails that reach the initiator's: those of the same network first, then by index from the
 * initiator's on. Each turn takes the next. */
struct rdma_rail *rdma_rail_choose(struct rdma *rdma, const struct wh_rdma_connect *wanted,
				   struct rdma_rail *copy, char why[WH_REFUSAL])
{
	unsigned all = rdma->rail_count, count = 0, turn;
	struct rdma_rail looks[RDMA_RAILS];
	uint8_t order[RDMA_RAILS];

	snprintf(why, WH_REFUSAL, "no RDMA device here");
	for (unsigned far = 0; far < 2; far++)
		for (unsigned i = 0; i < all; i++) {
			unsigned n = (wanted->index + i) % all;

			if (rdma_rail_query(&rdma->rails[n], &looks[n], why) &&
			    rdma_ends_are_compatible(&looks[n].end, &wanted->end, why) &&
			    ends_are_near(&looks[n].end, &wanted->end) == !far)
				order[count++] = (uint8_t)n;
		}
	if (!count)
		return NULL;
	turn = order[wanted->turn % count];
	*copy = looks[turn];
	return &rdma->rails[turn];
}

/* ---- events ---------------------------------------------------------------------------------- */

static void rail_port_changed(struct rdma_nic *nic, uint8_t port, int event)
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
		if (event == IBV_EVENT_PORT_ERR) { /* a query may still report the old state */
			rail->usable = false;
			snprintf(rail->why, WH_REFUSAL, "%s has gone down", rail->name);
		} else {
			rail_refresh(rail);
		}
		if (!rail->usable)
			memcpy(why, rail->why, sizeof(why));
		else if (memcmp(before.gid, rail->end.gid, sizeof(before.gid)) ||
			 before.lid != rail->end.lid)
			snprintf(why, sizeof(why), "the address of %s has changed", rail->name);
		pthread_mutex_unlock(&rdma->lock);
		wh_log_line(wh_engine_log(rdma->engine), WH_LOG_INFO, "rdma", "%s",
			    *why ? why : "a port is up again");
	}
	if (*why)
		rdma_rail_down(rdma, nic, port, why);
	else
		rdma_rail_up(rdma, nic, port);
}

static void nic_events_ready(struct wh_source *source, uint32_t events)
{
	struct rdma_nic *nic = wh_container(source, struct rdma_nic, events);
	const struct wh_verbs *verbs = nic->rdma->verbs;
	struct ibv_async_event event;
	char why[WH_REFUSAL];

	while (!verbs->get_async_event(nic->context, &event)) {
		int port = event.element.port_num, type = event.event_type;

		/* Destroying a queue pair waits for this. */
		verbs->ack_async_event(&event);
		switch (type) {
		case IBV_EVENT_PORT_ERR:
		case IBV_EVENT_PORT_ACTIVE:
		case IBV_EVENT_LID_CHANGE:
		case IBV_EVENT_GID_CHANGE:
			rail_port_changed(nic, (uint8_t)port, type);
			break;
		case IBV_EVENT_DEVICE_FATAL:
			snprintf(why, sizeof(why), "%s has failed, or been removed", nic->name);
			rdma_rail_down(nic->rdma, nic, 0, why);
			break;
		default: /* errors of a queue pair show in its completions, or by the endpoint's
			    timer */
			break;
		}
	}
	/* A removed device stays ready for ever. */
	if (events & (EPOLLERR | EPOLLHUP)) {
		wh_loop_remove(wh_engine_first_loop(nic->rdma->engine), source);
		source->fd = -1;
	}
}

/* ---- devices --------------------------------------------------------------------------------- */

/* One entry of the setting `rdma`: a device, a port (0: all), a GID index (-1: chosen). */
struct chosen {
	char name[WH_VERBS_NAME];
	unsigned port;
	int gid;
	bool found;
};

static int chosen_parse(const char *text, size_t length, struct chosen *out)
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

static void nic_add_rails(struct rdma *rdma, struct rdma_nic *nic, const struct chosen *chosen)
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
		rail_refresh(rail);
		rdma->rail_count++;
	}
}

static int nics_add_one(struct rdma *rdma, struct ibv_device *device, const struct chosen *chosen)
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
	nic_add_rails(rdma, nic, chosen);
	return 0;
}

/* Open the devices that the setting names, in its order; or all, if it names none. */
static int nics_add(struct rdma *rdma, struct ibv_device **list)
{
	const char *setting = wh_engine_config(rdma->engine)->text[WH_SETTING_RDMA];
	int error = -ENODEV;

	for (int i = 0; !*setting && list[i]; i++) {
		/* A device that cannot be opened does not keep the others from being used. */
		int trouble = nics_add_one(rdma, list[i], NULL);

		error = rdma->rail_count ? 0 : trouble;
	}
	for (const char *at = setting; *at; at += strcspn(at, ","), at += *at == ',') {
		size_t length = strcspn(at, ",");
		struct chosen chosen;

		if (chosen_parse(at, length, &chosen))
			return wh_fail(
				EINVAL,
				"rdma=%.60s: wants NAME[:PORT[:GID INDEX]] with commas between, "
				"such as mlx5_0:1:3",
				setting);
		error = 0;
		for (int i = 0; list[i] && !error && !chosen.found; i++) {
			chosen.found = !strcmp(chosen.name, rdma->verbs->get_device_name(list[i]));
			if (chosen.found)
				error = nics_add_one(rdma, list[i], &chosen);
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

/* If the kernel has no RDMA device, the library need not be loaded. */
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

/* The exponent of the NIC's acknowledgement timeout, so that it gives up before the setting
 * `timeout` ends: NICs wait up to four times as long as set, and RDMA_RETRIES times. From 67 ms
 * to 4.3 s. */
static uint8_t ack_timeout(const struct wh_engine *engine)
{
	int64_t most =
		wh_engine_config(engine)->number[WH_SETTING_TIMEOUT] * WH_MS / (RDMA_RETRIES + 1);
	uint8_t exponent = 14;

	while (exponent < 20 && (INT64_C(4096) << (exponent + 1)) <= most)
		exponent++;
	return exponent;
}

static int nic_listen(const struct rdma_nic *nic, struct wh_source *source, int fd)
{
	int error;

	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		return wh_fail(errno, "%s: its events: %s", nic->name, strerror(errno));
	source->fd = fd;
	error = wh_loop_add(wh_engine_first_loop(nic->rdma->engine), source, EPOLLIN);
	if (error)
		source->fd = -1;
	return error;
}

int rdma_rails_open(struct rdma *rdma)
{
	struct wh_engine *engine = rdma->engine;
	const char *library = wh_engine_config(engine)->text[WH_SETTING_VERBS];
	const char *setting = wh_engine_config(engine)->text[WH_SETTING_RDMA];
	struct ibv_device **list;
	int count = 0, error;

	if (!strcmp(setting, "off") || !strcmp(setting, "no"))
		return wh_fail(ENODEV, "switched off by the setting rdma (WHERRY_RDMA)");
	if (!*library && kernel_has_none())
		return wh_fail(ENODEV,
			       "the kernel has no RDMA device (/sys/class/infiniband is empty)");
	error = wh_verbs_open(library, &rdma->verbs);
	if (error)
		return error;
	rdma->ack_timeout = ack_timeout(engine);
	list = rdma->verbs->get_device_list(&count);
	if (!list || !count) {
		/* Unexpected: the kernel has some, or the setting `verbs` names the library. */
		error = wh_fail(ENOENT, "libibverbs finds no RDMA device; ibv_devices lists them");
		if (list)
			rdma->verbs->free_device_list(list);
		return error;
	}
	error = nics_add(rdma, list);
	rdma->verbs->free_device_list(list);
	if (!error)
		rdma_affinity_open(rdma);
	if (!error && !rdma->rail_count)
		error = wh_fail(ENXIO, "rdma=%.60s: the device has no such port", setting);
	for (unsigned i = 0; i < rdma->nic_count && !error; i++) {
		struct rdma_nic *nic = rdma->nics[i];

		nic->events.ready = nic_events_ready;
		nic->notifications_source.ready = rdma_notifications_ready;
		error = nic_listen(nic, &nic->events, nic->context->async_fd);
		if (!error)
			error = nic_listen(nic, &nic->notifications_source, nic->notifications->fd);
	}
	return error;
}

static void nics_stop_events(void *argument)
{
	struct rdma *rdma = argument;

	for (unsigned i = 0; i < rdma->nic_count; i++) {
		struct rdma_nic *nic = rdma->nics[i];

		if (nic->events.fd >= 0)
			wh_loop_remove(wh_engine_first_loop(rdma->engine), &nic->events);
		if (nic->notifications_source.fd >= 0)
			wh_loop_remove(wh_engine_first_loop(rdma->engine),
				       &nic->notifications_source);
	}
}

void rdma_rails_close(struct rdma *rdma)
{
	wh_loop_call(wh_engine_first_loop(rdma->engine), nics_stop_events, rdma);
	rdma_affinity_close(rdma);
	while (rdma->nic_count)
		nic_close(rdma->nics[--rdma->nic_count]);
	wh_verbs_close(rdma->verbs);
}
