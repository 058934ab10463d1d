# frozen_string_literal: true

# Runs the real Sidekiq (6.4, 7.3 or 8.1) for the tests. `ruby sidekiq.rb CODE..` evaluates code and prints its value as
# JSON; `ruby sidekiq.rb work QUEUE..` works these queues, and prints a line when it is ready.

require "json"
require "sidekiq"
require "sidekiq/api"

Sidekiq.logger.level = Logger::FATAL
Sidekiq.strict_args!(false) if Sidekiq.respond_to?(:strict_args!)
Redis.silence_deprecations = true if defined?(Redis) && Redis.respond_to?(:silence_deprecations=)
Redis.sadd_returns_boolean = false if defined?(Redis) && Redis.respond_to?(:sadd_returns_boolean=)
$stdout.sync = true

# Records its args and its jid in a list.
class Echo
  include Sidekiq::Worker

  def perform(*args)
    Sidekiq.redis { |redis| redis.rpush("ran", JSON.generate(["ruby", args, jid])) }
  end
end

# A class without a handler in duly.
class RubyOnly < Echo
end

# Sidekiq is set up by options before version 7, and by a configuration since then.
OLD = Sidekiq::VERSION.to_i < 7

# Queries of the tests, in the API of each version.
module Ask
  module_function

  def queue(name = "default")
    Sidekiq.redis { |redis| redis.lrange("queue:#{name}", 0, -1) }
  end

  def set(name)
    Sidekiq.redis { |redis| redis.zrange(name, 0, -1) }
  end

  def scores(name)
    return Sidekiq.redis { |redis| redis.zrange(name, 0, -1, with_scores: true) }.map(&:last) if OLD

    Sidekiq.redis { |redis| redis.call("ZRANGE", name, 0, -1, "WITHSCORES") }.map(&:last)
  end

  # Returns the entries that Ruby would write differently.
  def stable?
    entries = queue + %w[schedule retry dead].flat_map { |name| set(name) }
    entries.reject { |entry| JSON.generate(JSON.parse(entry)) == entry }
  end

  # Returns the running jobs: queue, args, and whether the start time is plausible.
  def work
    set = OLD ? Sidekiq::Workers.new : Sidekiq::WorkSet.new
    set.map do |_, _, work|
      next [work["queue"], work["payload"]["args"], (Time.now.to_i - work["run_at"]).abs < 3600] if OLD

      [work.queue, work.job.args, (Time.now - work.run_at).abs < 3600]
    end
  end

  # Promotes due jobs in a busy loop for this many seconds.
  def promote(seconds)
    require "sidekiq/scheduled"
    poller = OLD ? Sidekiq::Scheduled::Enq.new : Sidekiq::Scheduled::Enq.new(Sidekiq.default_configuration)
    deadline = Time.now + seconds
    poller.enqueue_jobs while Time.now < deadline
  end

  # Adds this many dead jobs, the oldest a minute old.
  def bury(count)
    count.times.each_slice(1000) do |numbers|
      pairs = numbers.flat_map { |n| [(Time.now.to_f - 60 + n / 1e4).to_s, %({"class":"Echo","n":#{n}})] }
      Sidekiq.redis { |redis| redis.call("ZADD", "dead", *pairs) }
    end
  end
end

# Loads ActiveJob, which takes a while, and defines two classes that record their class, queue and args.
def load_active_job
  require "active_job"
  ActiveJob::Base.queue_adapter = :sidekiq
  ActiveJob::Base.logger = Logger.new(IO::NULL)
  welcome = Class.new(ActiveJob::Base) do
    queue_as :active

    def perform(*args)
      Sidekiq.redis { |redis| redis.rpush("ran", JSON.generate(["ruby", [self.class.name, queue_name, *args], job_id])) }
    end
  end
  Object.const_set(:Welcome, welcome)
  Object.const_set(:Goodbye, Class.new(welcome))
end

load_active_job if ARGV.include?("active")

if ARGV[0] == "work"
  require "sidekiq/cli"
  require "sidekiq/launcher"
  if OLD
    Sidekiq.redis = { url: ENV.fetch("REDIS_URL"), size: 20 }
    Sidekiq::Launcher.new(Sidekiq.options.merge!(queues: ARGV[1..], concurrency: 5)).run
  else
    config = Sidekiq.default_configuration
    config.redis = { url: ENV.fetch("REDIS_URL") }
    config.queues = ARGV[1..]
    config.concurrency = 5
    Sidekiq::Launcher.new(config).run
  end
  # The first heartbeat, which a thread sends, makes the process visible.
  visible = -> { Sidekiq.redis { |c| c.smembers("processes") }.any? { |name| name.split(":")[1] == Process.pid.to_s } }
  sleep 0.01 until visible.call
  puts "ready"
  $stdin.read
  exit!
else
  puts JSON.generate([eval(ARGV.join("\n"))]) # rubocop:disable Security/Eval
end
