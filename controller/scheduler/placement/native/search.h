/* Functions that the parts of the search share: the deadline, the best host of a replica, and moves that can be undone. */
#pragma once

#include <string.h>

#include "state.h"

enum {
  DEADLINE_INTERVAL = 64, /* replicas between two checks of the deadline */
  MAX_FOLLOWERS = 16,     /* replicas that must move with another */
  MAX_TRIAL_MOVES = 2 * MAX_FOLLOWERS + 1,
};

typedef struct {
  State *state;
  double ends_at;
  int32_t call;             /* number of the current call of best_host */
  int32_t *neighbour_call;  /* [host] last call in which it had a replica of an adjacent workload */
  double *zone_delta;       /* [zone] state_network_delta of its hosts without such replicas */
  int32_t *zone_delta_call; /* [zone] call in which zone_delta was computed */
} Search;

/* Moves that are kept or undone together. */
typedef struct {
  State *state;
  double delta;
  int moves;
  int32_t replica[MAX_TRIAL_MOVES], from[MAX_TRIAL_MOVES];
} Trial;

static inline int32_t class_at(const State *state, int32_t replica) { return state->problem->class_of[replica]; }
static inline int64_t workload_at(const State *state, int32_t replica) { return state->problem->workload_of[class_at(state, replica)]; }
static inline int64_t adjacent_workload(const Problem *problem, EdgeEnd end) {
  return end.is_callee ? problem->caller[end.edge] : problem->callee[end.edge];
}
static inline int may_move(const State *state, int32_t replica, int32_t host) {
  return state_admits(state, class_at(state, replica), state->host_of[replica], host);
}
static inline void copy_hosts(int32_t *host_of, const State *state) {
  memcpy(host_of, state->host_of, (size_t)state->problem->replicas * sizeof(int32_t));
}

double now_s(void);
int is_past_deadline(const Search *search);
int32_t best_host(Search *search, int32_t replica, int64_t zone);
void restore_hosts(State *state, const int32_t *host_of);
int try_move(Trial *trial, int32_t replica, int32_t to);
void undo_trial(Trial *trial);

/* ejection.c */
void place_by_ejection(Search *search, int64_t attempts);

/* annealing.c */
void anneal_if_better(Search *search, int64_t steps, int may_violate_limits);
