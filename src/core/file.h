/* SPDX-License-Identifier: Apache-2.0 */
/* core/file.h: the settings of files */
#ifndef WH_CORE_FILE_H
#define WH_CORE_FILE_H

struct wh_config;

/* 0, or -EINVAL: a setting of files has no meaning. */
int wh_engine_check_files(const struct wh_config *config);

#endif
