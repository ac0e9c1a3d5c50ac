/* SPDX-License-Identifier: Apache-2.0 */
/* Transport cuda: which NVLink domain the GPUs are in, as NVML knows it, and whether the settings
 * allow to share memory in it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "platform/nvml.h"
#include "transport/core.h"
#include "transport/cuda/cuda.h"
#include "transport/cuda/fabric.h"
#include "util/clock.h"
#include "util/config.h"
#include "util/error.h"

/* A GPU may still be joining its fabric. */
#define LOOK_AGAIN (10 * WH_SECOND)

void wh_fabric_domains_init(struct wh_fabric_domains *domains)
{
	pthread_mutex_init(&domains->lock, NULL);
	snprintf(domains->why, sizeof(domains->why), "NVML has not been asked for NVLink domains");
}

void wh_fabric_domains_destroy(struct wh_fabric_domains *domains)
{
	pthread_mutex_destroy(&domains->lock);
}

bool wh_cuda_nvml_find(struct wh_nvml *nvml, const struct wh_cuda_device *device, unsigned *out)
{
	char uuid[WH_NVML_TEXT];

	for (unsigned i = 0; i < wh_nvml_count(nvml); i++) {
		if (!wh_nvml_text(nvml, WH_NVML_UUID, i, uuid) && !strcmp(uuid, device->uuid)) {
			*out = i;
			return true;
		}
	}
	return false;
}

/* Say why the device is in no domain. */
static void domain_explain(const struct wh_cuda_device *device, const struct wh_nvml_fabric *fabric,
			   char why[WH_REFUSAL])
{
	if (fabric->state == WH_NVML_FABRIC_NONE)
		snprintf(why, WH_REFUSAL, "%.100s belongs to no NVLink fabric", device->text);
	else if (fabric->state != WH_NVML_FABRIC_COMPLETED)
		snprintf(why, WH_REFUSAL,
			 "%.100s has not joined its NVLink fabric (state %u): is the fabric "
			 "manager running?",
			 device->text, fabric->state);
	else if (fabric->status)
		snprintf(why, WH_REFUSAL, "%.100s could not join its NVLink fabric (NVML %u)",
			 device->text, fabric->status);
	else
		snprintf(why, WH_REFUSAL, "the NVLink fabric of %.100s ends at this host",
			 device->text);
}

static void domains_ask(struct wh_fabric_domains *domains, struct wh_cuda *cuda,
			struct wh_nvml *nvml)
{
	domains->why[0] = '\0';
	for (unsigned d = 0; d < cuda->device_count; d++) {
		const struct wh_cuda_device *device = &cuda->devices[d];
		struct wh_nvml_fabric fabric = { .state = WH_NVML_FABRIC_NONE };
		unsigned index = 0;
		int error = wh_cuda_nvml_find(nvml, device, &index) ?
				    wh_nvml_fabric(nvml, index, &fabric) :
				    -ENODEV;

		if (!error && wh_nvml_fabric_spans(&fabric)) {
			domains->of[d].clique = fabric.clique;
			memcpy(domains->of[d].cluster, fabric.cluster, sizeof(fabric.cluster));
			domains->members |= wh_device_bit(device);
		} else if (!*domains->why && error && error != -EOPNOTSUPP) {
			snprintf(domains->why, sizeof(domains->why),
				 "NVML does not tell the NVLink fabric of %.100s: %s", device->text,
				 wh_nvml_meaning(error));
		} else if (!*domains->why) {
			domain_explain(device, &fabric, domains->why);
		}
	}
}

int wh_fabric_domains_look(struct wh_device_mappings *mappings, char why[WH_REFUSAL])
{
	struct wh_fabric_domains *domains = &mappings->domains;
	struct wh_nvml *nvml;
	int error = 0;

	pthread_mutex_lock(&domains->lock);
	if (!domains->members &&
	    (!domains->looked_at || wh_now() - domains->looked_at > LOOK_AGAIN)) {
		if (wh_nvml_open(NULL, &nvml)) {
			snprintf(domains->why, sizeof(domains->why),
				 "NVML does not tell which NVLink domain the GPUs are in: %.130s",
				 wh_error_text());
		} else {
			domains_ask(domains, wh_gpus_cuda(mappings->gpus), nvml);
			wh_nvml_close(nvml);
		}
		domains->looked_at = wh_now();
	}
	if (!domains->members) {
		snprintf(why, WH_REFUSAL, "%s", domains->why);
		error = -EOPNOTSUPP;
	}
	pthread_mutex_unlock(&domains->lock);
	return error;
}

bool wh_fabric_domain_of(struct wh_device_mappings *mappings, const struct wh_cuda_device *device,
			 struct wh_fabric_domain *out, char why[WH_REFUSAL])
{
	struct wh_fabric_domains *domains = &mappings->domains;
	bool member;

	pthread_mutex_lock(&domains->lock);
	member = domains->members & wh_device_bit(device);
	if (member)
		*out = domains->of[device->ordinal];
	else if (domains->members)
		snprintf(why, WH_REFUSAL, "%.100s is in no NVLink domain of several hosts",
			 device->text);
	else
		snprintf(why, WH_REFUSAL, "%s", domains->why);
	pthread_mutex_unlock(&domains->lock);
	return member;
}

bool wh_fabric_domains_equal(const struct wh_fabric_domain *one,
			     const struct wh_fabric_domain *other)
{
	return one->clique == other->clique &&
	       !memcmp(one->cluster, other->cluster, sizeof(one->cluster));
}

bool wh_fabric_domain_has(struct wh_device_mappings *mappings, const struct wh_cuda_device *device,
			  const struct wh_fabric_domain *domain)
{
	struct wh_fabric_domain of;
	char why[WH_REFUSAL];

	return !*device->skipped && wh_fabric_domain_of(mappings, device, &of, why) &&
	       wh_fabric_domains_equal(&of, domain);
}

void wh_fabric_domain_text(const struct wh_fabric_domain *domain, char out[WH_FABRIC_DOMAIN_TEXT])
{
	struct wh_nvml_fabric fabric = { .state = WH_NVML_FABRIC_COMPLETED,
					 .clique = domain->clique };
	char text[WH_NVML_DOMAIN];

	memcpy(fabric.cluster, domain->cluster, sizeof(fabric.cluster));
	wh_nvml_domain_text(&fabric, text);
	snprintf(out, WH_FABRIC_DOMAIN_TEXT, "%s", text);
}

int wh_fabric_check_setting(const struct wh_engine *engine, char why[WH_REFUSAL])
{
	const char *fabric = wh_engine_config(engine)->text[WH_SETTING_FABRIC];

	if (!strcmp(fabric, "off")) {
		snprintf(why, WH_REFUSAL, "the setting fabric is off");
		return -EOPNOTSUPP;
	}
	if (!strcmp(fabric, "tls") && !wh_engine_tls(engine)) {
		snprintf(why, WH_REFUSAL,
			 "fabric handles go over TLS only: set tls, or fabric=on if nobody else "
			 "sees the network");
		return -EOPNOTSUPP;
	}
	return 0;
}
