/* The search: put everything somewhere, make room for what found none, then anneal.
 *
 * After S. Kirkpatrick et al., Optimization by simulated annealing, 1983; room is made by ejection with penalties, after
 * Y. Nagata and O. Braysy, A powerful route minimization heuristic, 2009. Work is bounded by counts, so that the same problem
 * and seed give the same answer; the deadline only cuts it short.
 */
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

#define NEVER 1e300
#define MOST_EJECTED 3
#define MOST_MEMBERS 48      /* of a host that an ejection looks at */
#define MOST_HOSTS 64        /* that an ejection looks at */
#define MOST_FOLLOWERS 16    /* replicas that must move with another */
#define MOST_STEPS (2 * MOST_FOLLOWERS + 1) /* of a trial */
#define MOST_SETTLED 20000000 /* replicas times hosts */
#define MOST_SETTLED_TWICE 200000

typedef struct {
  State *s;
  int32_t *stamp; /* [host] */
  int32_t turn;
  double *flat;   /* [zone] price of a host without neighbours, in the turn of flat_turn */
  int32_t *flat_turn;
  double ends_at;
} Search;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static int late(const Search *q) { return now_s() > q->ends_at; }
static int32_t class_at(const State *s, int32_t i) { return s->p->class_of[i]; }
static int64_t workload_at(const State *s, int32_t i) { return s->p->workload_of[s->p->class_of[i]]; }

/* Marks the hosts of the replicas of a workload's neighbours: there a price is a host's own. */
static void mark_neighbours(Search *q, int64_t w) {
  State *s = q->s;
  const Problem *p = s->p;
  q->turn++;
  for (int64_t k = s->adjacent_start[w]; k < s->adjacent_start[w + 1]; k++) {
    int64_t e = s->adjacent[k] >> 1, other = s->adjacent[k] & 1 ? p->caller[e] : p->callee[e];
    for (int64_t m = s->member_start[other]; m < s->member_start[other + 1]; m++)
      if (s->at[s->member[m]] >= 0) q->stamp[s->at[s->member[m]]] = q->turn;
    for (int64_t f = p->fixed_start[other]; f < p->fixed_start[other + 1]; f++) q->stamp[p->fixed_host[f]] = q->turn;
  }
}

/* The cheapest host, of one zone where that is not -1, for a replica that is nowhere; -1 when none is open. */
static int32_t best_host(Search *q, int32_t i, int64_t zone) {
  State *s = q->s;
  const Problem *p = s->p;
  int32_t class = class_at(s, i), best = -1;
  double least = NEVER;
  mark_neighbours(q, p->workload_of[class]);
  const uint8_t *allowed = p->allowed + (int64_t)p->row_of[class] * p->hosts;
  for (int32_t h = 0; h < p->hosts; h++) {
    if (!allowed[h] || (zone >= 0 && p->zone_of[h] != zone) || !state_fits(s, class, h)) continue;
    double price;
    int32_t z = p->zone_of[h];
    if (q->stamp[h] == q->turn) price = state_network(s, class, -1, h);
    else {
      if (q->flat_turn[z] != q->turn) q->flat[z] = state_network(s, class, -1, h), q->flat_turn[z] = q->turn;
      price = q->flat[z];
    }
    price += state_other_delta(s, class, -1, h);
    if (price < least && state_allows(s, class, -1, h)) least = price, best = h;
  }
  return best;
}

typedef struct { double key; int32_t item; } Ranked;
static int by_key(const void *a, const void *b) {
  const Ranked *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->item - y->item;
}

/* Orders replicas along the heaviest edges, alternating between callers and callees. */
static void order_by_traffic(State *s, Ranked *order) {
  const Problem *p = s->p;
  Ranked *edge = calloc((size_t)p->edges + 1, sizeof(Ranked));
  uint8_t *taken = calloc((size_t)p->workloads + 1, 1);
  for (int32_t e = 0; e < p->edges; e++) edge[e].item = e, edge[e].key = -p->weight[e] * (0.8 + 0.4 * chance(s));
  qsort(edge, (size_t)p->edges, sizeof *edge, by_key);
  int64_t n = 0;
  for (int64_t turn = 0; turn <= p->edges + p->workloads - 1; turn++) {
    int64_t w[2];
    if (turn < p->edges) w[0] = p->caller[edge[turn].item], w[1] = p->callee[edge[turn].item];
    else w[0] = w[1] = turn - p->edges;
    int64_t from[2] = {0, 0}, count[2] = {0, 0};
    for (int i = 0; i < 2; i++)
      if (!taken[w[i]]) {
        taken[w[i]] = 1;
        from[i] = s->member_start[w[i]];
        count[i] = s->member_start[w[i] + 1] - from[i];
      }
    for (int64_t k = 0; k < count[0] || k < count[1]; k++)
      for (int i = 0; i < 2; i++)
        if (k < count[i]) order[n++].item = s->member[from[i] + k];
  }
  free(edge);
  free(taken);
}

static void clear(State *s) {
  for (int32_t i = 0; i < s->p->replicas; i++) state_move(s, i, -1);
}

static void fill(Search *q, const Ranked *order, int64_t zone) {
  for (int64_t k = 0; k < q->s->p->replicas; k++) {
    int32_t i = order[k].item;
    if (q->s->at[i] >= 0) continue;
    int32_t h = best_host(q, i, zone);
    if (h >= 0) state_move(q->s, i, h);
    if (k % 64 == 0 && late(q)) return;
  }
}

static void restore(State *s, const int32_t *at) {
  clear(s);
  for (int32_t i = 0; i < s->p->replicas; i++) state_move(s, i, at[i]);
}


typedef struct {
  int32_t host, size, gone[MOST_EJECTED];
  int64_t price;
} Ejection;

static int admits(const State *s, int32_t class, int32_t host) {
  return state_fits(s, class, host) && state_allows(s, class, -1, host);
}

static int may_go(const State *s, int32_t i, int32_t h) {
  int32_t class = class_at(s, i);
  return allows(s->p, class, h) && state_fits(s, class, h) && state_allows(s, class, s->at[i], h);
}

static int accepts(State *s, double delta, double heat) {
  return delta <= 0 || (heat > 0 && chance(s) < exp(-delta / heat));
}

/* Moves that are kept or undone together. */
typedef struct {
  State *s;
  double delta;
  int steps;
  int32_t replica[MOST_STEPS], from[MOST_STEPS];
} Trial;

/* Moves a replica, or takes it from its host (-1), if room and rules allow it. */
static int try_move(Trial *t, int32_t i, int32_t to) {
  State *s = t->s;
  if (to < 0 ? !state_may_leave(s, class_at(s, i), s->at[i]) : !may_go(s, i, to)) return 0;
  t->replica[t->steps] = i;
  t->from[t->steps++] = s->at[i];
  t->delta += state_delta(s, i, to);
  state_move(s, i, to);
  return 1;
}

static void undo(Trial *t) {
  while (t->steps--) state_move(t->s, t->replica[t->steps], t->from[t->steps]);
}

/* Keeps the moves if all were possible and the change is accepted; returns the change. */
static double finish(Trial *t, int possible, double heat) {
  if (possible && accepts(t->s, t->delta, heat)) return t->delta;
  undo(t);
  return 0;
}

static int has_rules(const State *s, int32_t class) { return s->p->role_start[class] < s->p->role_start[class + 1]; }

/* Whether a host admits a class without some of its replicas. If rules count them, they are removed and put back. */
static int admits_without(State *s, int32_t class, int32_t host, const int32_t *gone, int n) {
  const Problem *p = s->p;
  int ruled = has_rules(s, class), open = 1;
  for (int64_t a = p->ask_start[class]; a < p->ask_start[class + 1]; a++) {
    int64_t r = p->ask_resource[a], room = s->free[host * p->resources + r];
    for (int k = 0; k < n; k++) room += s->ask[class_at(s, gone[k]) * p->resources + r];
    if (room < p->ask_amount[a]) return 0;
  }
  for (int k = 0; k < n; k++) ruled |= has_rules(s, class_at(s, gone[k]));
  if (!ruled) return 1;
  Trial t = {.s = s};
  for (int k = 0; open && k < n; k++) open = try_move(&t, gone[k], -1);
  open = open && admits(s, class, host);
  undo(&t);
  return open;
}

/* Replicas of a host whose removal admits another, with fewer failures so far than the best: one, else two or three. */
static void look_for_ejection(State *s, int32_t class, int32_t host, const int64_t *blame, Ejection *best) {
  int32_t members[MOST_MEMBERS];
  int n = 0;
  Roster *r = &s->roster[host];
  for (int32_t k = 0, skip = r->length > MOST_MEMBERS ? (int32_t)below(s, r->length) : 0; k < r->length && n < MOST_MEMBERS; k++)
    members[n++] = r->item[(k + skip) % r->length];
  for (int k = 0; k < n; k++) {
    int64_t price = blame[class_at(s, members[k])] * 8 + below(s, 8);
    if (price < best->price && admits_without(s, class, host, &members[k], 1))
      best->price = price, best->host = host, best->size = 1, best->gone[0] = members[k];
  }
  for (int turn = 0; n > 1 && best->host != host && turn < 6; turn++) {
    int32_t gone[MOST_EJECTED];
    int64_t price = below(s, 8);
    for (int size = 0; size < MOST_EJECTED && size < n; size++) {
      int k = size + (int)below(s, n - size);
      int32_t pick = members[k];
      members[k] = members[size], members[size] = pick;
      gone[size] = pick;
      price += blame[class_at(s, pick)] * 8;
      if (price >= best->price) break;
      if (size && admits_without(s, class, host, gone, size + 1)) {
        best->price = price, best->host = host, best->size = size + 1;
        memcpy(best->gone, gone, sizeof gone);
        break;
      }
    }
  }
}

/* Random moves that the rules allow, at any cost, to redistribute free capacity. */
static void shake(State *s, int turns) {
  const Problem *p = s->p;
  for (int k = 0; k < turns; k++) {
    int32_t i = (int32_t)below(s, p->replicas), h = (int32_t)below(s, p->hosts);
    if (s->at[i] >= 0 && s->at[i] != h && state_fits(s, class_at(s, i), h) && state_allows(s, class_at(s, i), s->at[i], h))
      state_move(s, i, h);
  }
}

static int hopeless(const State *s, int32_t class) {
  const Problem *p = s->p;
  for (int32_t h = 0; h < p->hosts; h++) {
    if (!allows(p, class, h)) continue;
    int room = 1;
    for (int64_t a = p->ask_start[class]; room && a < p->ask_start[class + 1]; a++)
      room = p->free[(int64_t)h * p->resources + p->ask_resource[a]] >= p->ask_amount[a];
    if (room) return 0;
  }
  return 1;
}

/* Replicas without a place, except those that fit no host even when it is empty. */
typedef struct {
  int32_t *item;
  int64_t length, *blame; /* [class] how often one of it found no place */
  int32_t *tried;         /* [class] turn in which one of it was tried in vain */
} Pool;

/* Places replicas that fit somewhere; of each class it tries one. */
static void admit_all(Search *q, Pool *pool, int32_t turn) {
  State *s = q->s;
  for (int64_t k = pool->length - 1; k >= 0; k--) {
    int32_t i = pool->item[k], class = class_at(s, i), h = pool->tried[class] == turn ? -1 : best_host(q, i, -1);
    if (h < 0) pool->tried[class] = turn;
    else state_move(s, i, h), pool->item[k] = pool->item[--pool->length];
  }
}

/* Places a replica where those with the fewest failures are, and puts these into the pool. */
static void eject(Search *q, Pool *pool) {
  State *s = q->s;
  const Problem *p = s->p;
  int64_t k = below(s, pool->length);
  int32_t i = pool->item[k], class = class_at(s, i), first = (int32_t)below(s, p->hosts);
  Ejection found = {-1, 0, {0}, INT64_MAX};
  pool->blame[class]++;
  for (int32_t step = 0, looked = 0; step < p->hosts && looked < MOST_HOSTS; step++) {
    int32_t host = (first + step) % (int32_t)p->hosts;
    if (!allows(p, class, host) || !s->roster[host].length) continue;
    looked++;
    look_for_ejection(s, class, host, pool->blame, &found);
  }
  if (found.host < 0) return;
  pool->item[k] = pool->item[--pool->length];
  for (int n = 0; n < found.size; n++) state_move(s, found.gone[n], -1), pool->item[pool->length++] = found.gone[n];
  state_move(s, i, found.host);
}

/* Finds places for replicas that have none by ejecting others, which then look for places themselves. */
static void make_room(Search *q, int64_t turns) {
  State *s = q->s;
  const Problem *p = s->p;
  size_t replicas = (size_t)p->replicas + 1, classes = (size_t)p->classes + 1;
  int32_t *best = malloc(replicas * sizeof(int32_t));
  Pool pool = {malloc(replicas * sizeof(int32_t)), 0, calloc(classes, sizeof(int64_t)), calloc(classes, sizeof(int32_t))};
  for (int32_t k = 0; k < p->classes; k++) pool.blame[k] = hopeless(s, k) ? -1 : 1;
  for (int32_t i = 0; i < p->replicas; i++)
    if (s->at[i] < 0 && pool.blame[class_at(s, i)] > 0) pool.item[pool.length++] = i;
  int64_t most = s->placed;
  memcpy(best, s->at, (size_t)p->replicas * sizeof(int32_t));
  for (int32_t turn = 1; turn <= turns && pool.length && !late(q); turn++) {
    eject(q, &pool);
    if (turn % 4 == 0) shake(s, 12);
    admit_all(q, &pool, turn);
    if (s->placed > most) most = s->placed, memcpy(best, s->at, (size_t)p->replicas * sizeof(int32_t));
  }
  if (s->placed < most) restore(s, best);
  free(best);
  free(pool.item);
  free(pool.blame);
  free(pool.tried);
}

/* Proposes a host for a replica: mostly one with a replica of a workload that it calls or that calls it. */
static int32_t propose(State *s, int32_t i) {
  const Problem *p = s->p;
  int64_t w = workload_at(s, i), degree = s->adjacent_start[w + 1] - s->adjacent_start[w];
  if (degree && (draw(s) & 15) < 14) {
    int64_t k = s->adjacent[s->adjacent_start[w] + below(s, degree)], e = k >> 1, other = k & 1 ? p->caller[e] : p->callee[e];
    int64_t members = s->member_start[other + 1] - s->member_start[other];
    int64_t fixed = p->fixed_start[other + 1] - p->fixed_start[other], pick = below(s, members + fixed + 1);
    if (pick < members) return s->at[s->member[s->member_start[other] + pick]];
    if (pick < members + fixed) return p->fixed_host[p->fixed_start[other] + pick - members];
  }
  return (int32_t)below(s, p->hosts);
}


static int swap_fits(const State *s, int32_t one, int32_t other, int32_t here, int32_t there) {
  const Problem *p = s->p;
  const int64_t *mine = s->ask + one * p->resources, *its = s->ask + other * p->resources;
  const int64_t *at_here = s->free + here * p->resources, *at_there = s->free + there * p->resources;
  for (int64_t r = 0; r < p->resources; r++) {
    int64_t more = mine[r] - its[r];
    if ((more > 0 && at_there[r] < more) || (more < 0 && at_here[r] < -more)) return 0;
  }
  return 1;
}

/* Swaps two replicas, or neither; returns the change of the cost. */
static double swap(State *s, int32_t i, int32_t j, double heat) {
  int32_t here = s->at[i], there = s->at[j], one = class_at(s, i), other = class_at(s, j);
  if (one == other || !allows(s->p, one, there) || !allows(s->p, other, here)) return 0;
  if (!swap_fits(s, one, other, here, there) || !state_may_leave(s, other, there)) return 0;
  Trial t = {.s = s};
  return finish(&t, try_move(&t, i, -1) && try_move(&t, j, here) && try_move(&t, i, there), heat);
}

/* Gives the place of a replica to one without a place, or moves neither. */
static double replace(State *s, int32_t i, int32_t j, double heat) {
  int32_t host = s->at[j];
  Trial t = {.s = s};
  return finish(&t, try_move(&t, j, -1) && try_move(&t, i, host), heat);
}

/* Replicas that must be in a domain by this affinity rule, one excepted; -1 if there are too many. */
static int followers(const State *s, int64_t r, int32_t domain, int32_t except, int32_t *found) {
  const Problem *p = s->p;
  int n = 0;
  for (int32_t h = 0; h < p->hosts; h++) {
    if (p->domain_of[r * p->hosts + h] != domain) continue;
    for (int32_t k = 0; k < s->roster[h].length; k++) {
      int32_t i = s->roster[h].item[k], owner = 0, class = class_at(s, i);
      for (int64_t a = p->role_start[class]; a < p->role_start[class + 1]; a++) owner |= p->role_rule[a] == r && (p->role[a] & OWNER);
      if (i == except || !owner) continue;
      if (n == MOST_FOLLOWERS) return -1;
      found[n++] = i;
    }
  }
  return n;
}

/* Moves a replica to another domain with all that must be in its domain: to its host, else to a random one. */
static double lead(State *s, int32_t i, int32_t to, double heat) {
  const Problem *p = s->p;
  int32_t class = class_at(s, i), here = s->at[i], gone[MOST_FOLLOWERS];
  int64_t rule = -1;
  for (int64_t a = p->role_start[class]; a < p->role_start[class + 1]; a++) {
    int64_t r = p->role_rule[a];
    int32_t domain = p->domain_of[r * p->hosts + here];
    if (p->rule_kind[r] == RULE_AFFINITY && (p->role[a] & COUNTED) && domain >= 0 && domain != p->domain_of[r * p->hosts + to])
      rule = r;
  }
  if (rule < 0) return 0;
  int n = followers(s, rule, p->domain_of[rule * p->hosts + here], i, gone), possible = n > 0;
  Trial t = {.s = s};
  for (int k = 0; possible && k < n; k++) possible = try_move(&t, gone[k], -1);
  possible = possible && state_may_leave(s, class, here) && try_move(&t, i, to);
  for (int k = 0; possible && k < n; k++) {
    possible = try_move(&t, gone[k], to);
    for (int turn = 1; !possible && turn < 24; turn++) possible = try_move(&t, gone[k], (int32_t)below(s, p->hosts));
  }
  return finish(&t, possible, heat);
}

/* One step. The effect of each move, measured by leaving it out:
 *
 *   move     wherever the host has room
 *   swap     where it has none: M3 (3,485 replicas of 547 services) gains 1 % less affinity without
 *   lead     1 in 10, required affinity alone: of 200 random clusters one breaks a limit more without
 *   replace  where a replica has no place: 5 of 200 random clusters cost more without, up to 1.6 times, or break more limits
 */
static double step(State *s, double heat) {
  const Problem *p = s->p;
  int32_t i = (int32_t)below(s, p->replicas), to = propose(s, i);
  if (to < 0 || to == s->at[i]) return 0;
  Roster *there = &s->roster[to];
  if (s->at[i] < 0) {
    if (may_go(s, i, to)) state_move(s, i, to);
    else if (there->length && allows(p, class_at(s, i), to)) return replace(s, i, there->item[below(s, there->length)], heat);
    return 0;
  }
  if (has_rules(s, class_at(s, i)) && below(s, 10) == 0) return lead(s, i, to, heat);
  if (may_go(s, i, to)) {
    double delta = state_delta(s, i, to);
    if (!accepts(s, delta, heat)) return 0;
    state_move(s, i, to);
    return delta;
  }
  if (!there->length || !allows(p, class_at(s, i), to)) return 0;
  return swap(s, i, there->item[below(s, there->length)], heat);
}

/* Mean change of the cost by a move, without moves that break a limit. */
static double typical(State *s) {
  const Problem *p = s->p;
  double sum = 0, count = 0;
  for (int turn = 0; turn < 4000 && count < 500; turn++) {
    int32_t i = (int32_t)below(s, p->replicas), to = propose(s, i);
    if (to < 0 || s->at[i] < 0 || to == s->at[i] || !allows(p, class_at(s, i), to)) continue;
    double delta = fabs(state_delta(s, i, to));
    if (delta > p->limit_price / 4 || delta == 0) continue;
    sum += delta;
    count++;
  }
  return count > 0 ? sum / count : 1;
}

/* Cools by the share of steps done, or of the time if that ends earlier. */
static double anneal(Search *q, int64_t steps, double hot, double cold) {
  double cost = 0, heat = hot, began = now_s(), time_left = 0.9 * (q->ends_at - began), gone = 0, done = 0;
  for (int64_t turn = 0; turn < steps && done < 1; turn++) {
    if (turn % 256 == 255) {
      if (turn % 2048 == 2047) gone = time_left > 0 ? (now_s() - began) / time_left : 1;
      done = fmax((double)turn / (double)steps, gone);
      heat = hot * pow(cold / hot, done);
    }
    cost += step(q->s, heat);
  }
  return cost;
}

/* Moves each replica to its best host, until no move helps. */
static void settle(Search *q, int passes) {
  State *s = q->s;
  for (int pass = 0, changed = 1; pass < passes && changed; pass++) {
    changed = 0;
    for (int32_t i = 0; i < s->p->replicas; i++) {
      int32_t here = s->at[i];
      if (here < 0 || (i % 64 == 0 && late(q))) continue;
      state_move(s, i, -1);
      double before = state_delta(s, i, here);
      int32_t to = best_host(q, i, -1);
      double after = to < 0 ? NEVER : state_delta(s, i, to);
      state_move(s, i, here);
      if (to == here || after >= before - 1e-9 * fabs(before) || !state_allows(s, class_at(s, i), here, to)) continue;
      state_move(s, i, to);
      changed++;
    }
  }
}

static void begin(Search *q, const int32_t *hints, int64_t room_turns, int64_t home) {
  State *s = q->s;
  const Problem *p = s->p;
  Ranked *order = calloc((size_t)p->replicas + 1, sizeof(Ranked));
  for (int32_t i = 0; i < p->replicas; i++)
    if (hints[i] >= 0 && admits(s, class_at(s, i), hints[i])) state_move(s, i, hints[i]);
  order_by_traffic(s, order);
  if (home >= 0) fill(q, order, home);
  fill(q, order, -1);
  free(order);
  if (s->placed < p->replicas) make_room(q, room_turns);
}

/* Places everything; see native.py. `at` holds hints on entry, or -1, and hosts on return; what fits into the zone `home` begins
 * there, unless that is -1. Returns what it costs. */
double plan_search(const Problem *p, int32_t *at, uint64_t seed, int64_t steps, int64_t room_turns, int64_t home, double hot,
                   double cold, double seconds) {
  Search q = {state_new(p, seed), calloc((size_t)p->hosts + 1, sizeof(int32_t)), 0, calloc((size_t)p->zones + 1, sizeof(double)),
              calloc((size_t)p->zones + 1, sizeof(int32_t)), now_s() + seconds};
  State *s = q.s;
  if (p->replicas && p->hosts) {
    begin(&q, at, room_turns, home);
    /* Small problems: a local optimum of the start may be better than what annealing finds. */
    if (p->replicas * p->hosts <= MOST_SETTLED_TWICE) settle(&q, 8);
    int32_t *start = malloc((size_t)p->replicas * sizeof(int32_t));
    memcpy(start, s->at, (size_t)p->replicas * sizeof(int32_t));
    int64_t before = s->placed;
    double scale = hot < 0 ? p->limit_price : typical(s);
    if (steps && anneal(&q, steps, fabs(hot) * scale, cold * typical(s)) > 0 && s->placed <= before) restore(s, start);
    free(start);
    if (p->replicas * p->hosts <= MOST_SETTLED) settle(&q, 8);
  }
  memcpy(at, s->at, (size_t)p->replicas * sizeof(int32_t));
  double cost = state_cost(s);
  state_free(s);
  free(q.stamp);
  free(q.flat);
  free(q.flat_turn);
  return cost;
}
